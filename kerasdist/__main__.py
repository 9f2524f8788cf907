"""The `kerasdist` command: `python -m kerasdist --help`."""

import argparse
import dataclasses
import os
import sys

from kerasdist import launcher
from kerasdist.cluster import Cluster
from kerasdist.config import DeploymentConfig
from kerasdist.plan import plan_deployment
from kerasdist.strategies.choice import choose
from kerasdist.strategies.make_strategy import count_gpus


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code: 0 done, 2 a mistake in the arguments."""
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.command(parsed)
    except (ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kerasdist",
        description="Train a Keras 3 model on one device, many GPUs or many machines.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan",
        help="print which strategy a deployment gets, and why, without starting training",
        description="Prints which strategy a deployment gets, and why, without starting training. "
        "The cluster comes from TF_CONFIG.",
        allow_abbrev=False,
    )
    _add_deployment_arguments(plan)
    plan.add_argument("--batch_size", type=int, metavar="N", help="examples of a batch, per clone")
    plan.add_argument("--num_examples", type=int, metavar="N", help="examples of an epoch")
    plan.set_defaults(command=_print_plan)
    doctor = commands.add_parser(
        "doctor",
        usage="python -m kerasdist doctor [OPTION ...] [-- python PROGRAM [ARGUMENT ...]]",
        help="check that replicas give the weights of one device, here or in your program",
        description="With a program after --, runs it on one device (plain Keras) and on the "
        "deployment that it asks for, compares weights and logs after each of its first training "
        "steps, and prints where they first differ and why. The program needs no change. It runs "
        "in this directory and is ended after these steps: what it writes before them, or at the "
        "end of a shorter epoch, is really written. Without a program, trains small models on one "
        "device and on two replicas, with stock Keras and with kerasdist, and prints where the "
        "weights differ, in some minutes. The exit code is 0 where kerasdist is equal, 1 where it "
        "differs or the program fails, 2 for wrong arguments.",
        allow_abbrev=False,
    )
    _add_doctor_arguments(doctor)
    doctor.set_defaults(command=_run_doctor)
    launch = commands.add_parser(
        "launch",
        usage="python -m kerasdist launch [OPTION ...] -- PROGRAM [ARGUMENT ...]",
        help="run a program as all tasks of a cluster on this machine",
        description="Runs a program as all tasks of a cluster on this machine, with TF_CONFIG set "
        "for each. The exit code is that of the task that failed first; docs/clusters.md lists "
        "them.",
        allow_abbrev=False,
    )
    _add_launch_arguments(launch)
    launch.set_defaults(command=_launch)
    return parser


def _add_doctor_arguments(parser):
    number = {"type": int, "metavar": "N"}
    table = parser.add_argument_group("without a program")
    table.add_argument("--only", metavar="TEXT", help="rows whose title holds this text")
    table.add_argument("--markdown", metavar="FILE", help="also write the table to this file")
    program = parser.add_argument_group("with a program")
    program.add_argument("--steps", **number, help="training steps to compare (default: 5)")
    program.add_argument("--clones", **number, help="replicas of each worker, not the program's")
    program.add_argument("--workers", **number, help="workers on this machine, not the program's")
    program.add_argument(
        "--alike",
        action="store_true",
        help="let all examples draw the same random numbers, and batch statistics be global",
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the command, after --")


def _add_launch_arguments(parser):
    defaults = launcher.Settings()
    count = {"type": int, "metavar": "N"}
    secs = {"type": float, "metavar": "SECS"}

    def add(flag, name, text, **options):
        default = getattr(defaults, name)
        told = f" (default: {default})" if default else ""
        parser.add_argument(flag, dest=name, default=default, help=text + told, **options)

    add("--workers", "num_workers", "workers", **count)
    add("--ps", "num_ps", "parameter servers, with a chief", **count)
    add("--chief", "chief", "a chief beside the workers", action="store_true")
    add("--evaluator", "evaluator", "an evaluator as well", action="store_true")
    add("--clones", "num_clones", "replicas of each worker", **count)
    add(
        "--max-restarts",
        "max_restarts",
        "restarts of the whole cluster; with --ps, of a lost worker too",
        **count,
    )
    add("--grace-secs", "grace_secs", "time to end after TERM, before KILL", **secs)
    add("--timeout-secs", "timeout_secs", "time for everything", **secs)
    add("--frozen-timeout-secs", "frozen_timeout_secs", "time a task may be halted", **secs)
    add("--log-dir", "log_dir", "one file per task; else kerasdist_logs/<run id>", metavar="DIR")
    add(
        "--network",
        "network",
        "isolated: no other machine is reached, or reaches the cluster",
        choices=launcher.NETWORKS,
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the command, after --")


def _add_deployment_arguments(parser):
    defaults = DeploymentConfig()
    number = {"type": int, "metavar": "N"}
    parser.add_argument("--num_clones", **number, help="replicas per worker")
    parser.add_argument("--clone_on_cpu", action="store_true", help="clones on logical CPUs")
    parser.add_argument("--num_replicas", **number, help="worker tasks")
    parser.add_argument("--num_ps_tasks", **number, help="parameter server tasks")
    parser.add_argument("--replica_id", **number, help="index of this worker")
    parser.add_argument("--worker_job_name", metavar="NAME", help=f"{defaults.worker_job_name}")
    parser.add_argument("--ps_job_name", metavar="NAME", help=f"{defaults.ps_job_name}")


def _print_plan(parsed) -> int:
    config = _config(parsed)
    # Asking for GPUs loads TensorFlow, which takes seconds.
    num_gpus = 0 if config and config.clone_on_cpu else count_gpus()
    choice = choose(config, Cluster.from_env(), num_gpus=num_gpus)
    batch_size = _at_least_one("--batch_size", parsed.batch_size)
    num_examples = _at_least_one("--num_examples", parsed.num_examples)
    # Beside parameter servers, a step is that of one worker.
    num_replicas = len(choice.devices) if choice.num_ps else choice.num_replicas
    print(
        plan_deployment(
            choice,
            global_batch_size=batch_size and batch_size * num_replicas,
            num_examples=num_examples,
        )
    )
    return 0


def _run_doctor(parsed) -> int:
    # What fails is said in words; stock Keras does in many rows.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    of_table = {"only": parsed.only, "markdown": parsed.markdown}
    of_program = {name: getattr(parsed, name) for name in ("steps", "clones", "workers", "alike")}
    if command := _command_of(parsed):
        _refuse(of_table, "is for the table, which takes no program")
        from kerasdist.doctor import program

        return program.examine(
            command,
            num_steps=program.NUM_STEPS if parsed.steps is None else parsed.steps,
            num_clones=parsed.clones,
            num_workers=parsed.workers,
            is_alike=parsed.alike,
        )
    _refuse(of_program, "needs a program to examine, as in `doctor --clones 2 -- python train.py`")
    from kerasdist.doctor import table

    return table.main(only=parsed.only or "", markdown=parsed.markdown)


def _refuse(options, reason):
    for name, value in options.items():
        if value not in (None, False):
            raise ValueError(f"`--{name}` {reason}. Received: {name}={value}.")


def _command_of(parsed) -> list[str]:
    return parsed.program[1:] if parsed.program[:1] == ["--"] else parsed.program


def _launch(parsed) -> int:
    names = [field.name for field in dataclasses.fields(launcher.Settings)]
    settings = {name: getattr(parsed, name) for name in names}
    try:
        return launcher.launch(_command_of(parsed), **settings).exit_code
    except KeyboardInterrupt:
        return 130


def _config(parsed) -> DeploymentConfig | None:
    names = [
        "num_clones",
        "num_replicas",
        "num_ps_tasks",
        "replica_id",
        "worker_job_name",
        "ps_job_name",
    ]
    given = {name: getattr(parsed, name) for name in names if getattr(parsed, name) is not None}
    if parsed.clone_on_cpu:
        given["clone_on_cpu"] = True
    return DeploymentConfig(**given) if given else None


def _at_least_one(flag, value):
    if value is not None and value < 1:
        raise ValueError(f"`{flag}` must be at least 1. Received: {flag}={value}.")
    return value


if __name__ == "__main__":
    sys.exit(main())
