"""The `kerasdist` command: `python -m kerasdist --help`."""

import argparse
import dataclasses
import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

from kerasdist import launcher
from kerasdist.cluster import Cluster
from kerasdist.command_parser import CommandParser, PrintVersions
from kerasdist.config import DeploymentConfig
from kerasdist.launcher.command import checked
from kerasdist.plan import plan_deployment
from kerasdist.strategies.choice import (
    choose,
    config_or_launched,
    place_in,
    what_counts_for_task,
)
from kerasdist.strategies.make_strategy import count_gpus
from kerasdist.support.checks import check_int
from kerasdist.support.exit_codes import SIGNALED, USAGE
from kerasdist.support.terminal import leave, say
from kerasdist.support.text import printable
from kerasdist.support.usage_error import UsageError, arguments_checked, flags_named

_DEVICES = Path("/dev")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code: 0 done, 2 a mistake in the arguments."""
    parsed = _parser().parse_args(arguments)
    try:
        exit_code = parsed.command(parsed)
        print(end="", flush=True)  # An error of the output is to be seen here.
        return exit_code
    except UsageError as error:
        say(printable(f"error: {error}"))  # It shows what variables and files hold.
        return USAGE
    except BrokenPipeError:  # Nobody reads on, as with `| head`.
        return SIGNALED + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _FULL:
            raise
        say(f"error: The output cannot be written: {error}.")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m kerasdist",
        description="Train a Keras 3 model on one device, many GPUs or many machines.",
    )
    parser.add_argument("--version", action=PrintVersions, nargs=0, help="print the versions")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_plan, _add_doctor, _add_trace, _add_inspect, _add_show, _add_launch):
        add(commands)
    return parser


def _add_plan(commands: Any):
    parser = commands.add_parser(
        "plan",
        help="print which strategy a deployment gets, and why, without starting training",
        description="Prints which strategy a deployment gets, and why, without starting training. "
        "The cluster comes from TF_CONFIG, or what a launcher tells each process; none of them is "
        "waited for.",
    )
    _add_deployment(parser)
    parser.add_argument(
        "--global_batch_size",
        type=int,
        metavar="N",
        help="examples of one step over all clones, which is `batch_size` of `fit`; with "
        "parameter servers, over the clones of one worker",
    )
    parser.add_argument(
        "--num_examples", type=int, metavar="N", help="examples of an epoch, over all workers"
    )
    parser.set_defaults(command=_print_plan)


def _add_deployment(parser: argparse.ArgumentParser):
    defaults = DeploymentConfig()
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--num_clones", **number, help="replicas per worker")
    parser.add_argument("--clone_on_cpu", action="store_true", help="clones on logical CPUs")
    parser.add_argument("--num_replicas", **number, help="worker tasks")
    parser.add_argument("--num_ps_tasks", **number, help="parameter server tasks")
    text = "with parameter servers, synchronous workers"
    parser.add_argument("--sync_replicas", action="store_true", help=text)
    text = "gradients of each update of such workers; -1 for one of each"
    parser.add_argument("--replicas_to_aggregate", **number, help=text)
    parser.add_argument("--replica_id", **number, help="index of this worker")
    text = f"name of the workers' job in the cluster (default: {defaults.worker_job_name})"
    parser.add_argument("--worker_job_name", metavar="NAME", help=text)
    text = f"name of the parameter servers' job in the cluster (default: {defaults.ps_job_name})"
    parser.add_argument("--ps_job_name", metavar="NAME", help=text)


_DEPLOYMENT_FLAGS = {
    field.name: f"--{field.name}" for field in dataclasses.fields(DeploymentConfig)
}


def _print_plan(parsed: argparse.Namespace) -> int:
    numbers = {name: getattr(parsed, name) for name in ("global_batch_size", "num_examples")}
    with arguments_checked(_DEPLOYMENT_FLAGS):
        for name, number in numbers.items():
            if number is not None:
                check_int(f"--{name}", number, at_least=1)
        config, cluster = what_counts_for_task(_config(parsed), Cluster.from_env(meet=False))
    # Counting GPUs loads TensorFlow, which takes seconds.
    asks_for_gpus = not (config and config.clone_on_cpu) and _may_have_gpus()
    num_gpus = count_gpus() if asks_for_gpus else 0
    with arguments_checked(_DEPLOYMENT_FLAGS):
        config = config_or_launched(config, cluster, num_gpus=num_gpus)
        choice = choose(config, cluster, num_gpus=num_gpus)
    plan = plan_deployment(choice, **numbers)
    print(dataclasses.replace(plan, settings={"task": place_in(cluster)} if cluster.jobs else {}))
    return 0


def _config(parsed: argparse.Namespace) -> DeploymentConfig | None:
    values = {name: getattr(parsed, name) for name in _DEPLOYMENT_FLAGS}
    given = {
        name: value for name, value in values.items() if value is not None and value is not False
    }
    return DeploymentConfig(**given) if given else None


def _may_have_gpus() -> bool:
    """Returns False if the system has no device that TensorFlow could take for a GPU."""
    if sys.platform != "linux":
        return True
    # NVIDIA's, those of its small boards, AMD's, and what Windows lends to its Linux.
    kinds = ("nvidia*", "nvhost*", "kfd", "dxg")
    return any(any(_DEVICES.glob(kind)) for kind in kinds)


def _add_doctor(commands: Any):
    parser = commands.add_parser(
        "doctor",
        usage="python -m kerasdist doctor [OPTION ...] [-- python PROGRAM [ARGUMENT ...]]",
        help="check that replicas give the weights of one device, here or in your program",
        description="With a program after --, runs it on one device (plain Keras) and on the "
        "deployment that it asks for, compares weights and logs after each of its first training "
        "steps, and prints where they first differ and why. The program needs no change. It runs "
        "in this directory and is ended after these steps: what it writes before that is really "
        "written. Without a program, trains small models on one "
        "device and on two replicas, with stock Keras and with kerasdist, and prints where the "
        "weights differ, in some minutes. The exit code is 0 if kerasdist is equal, 1 if it "
        "differs or the program fails, 2 for wrong arguments.",
    )
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--steps", **number, help="training steps to compare (default: 5)")
    parser.add_argument("--clones", **number, help="replicas per worker, overriding the program")
    parser.add_argument(
        "--workers", **number, help="workers on this machine, overriding the program"
    )
    parser.add_argument(
        "--alike",
        action="store_true",
        help="make all examples draw the same random numbers, and batch statistics global",
    )
    parser.add_argument("--only", metavar="TEXT", help="run only rows whose title contains TEXT")
    parser.add_argument(
        "--quick", action="store_true", help="run only a few rows, in half a minute"
    )
    parser.add_argument("--markdown", metavar="FILE", help="write the table to this file, too")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the command, after --")
    parser.set_defaults(command=_run_doctor)


def _run_doctor(parsed: argparse.Namespace) -> int:
    # Failures are reported in words; stock Keras fails in many rows.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    of_table = {"only": parsed.only, "quick": parsed.quick, "markdown": parsed.markdown}
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

    return table.examine(only=parsed.only or "", is_quick=parsed.quick, markdown=parsed.markdown)


def _refuse(options: dict[str, Any], reason: str):
    for name, value in options.items():
        if value is not None and value is not False:  # 0 is a value.
            raise UsageError(f"`--{name}` {reason}. Received: {name}={value}.")


def _add_trace(commands: Any):
    parser = commands.add_parser(
        "trace",
        help="print where the time of a recorded step went",
        description="Prints where the time of a trace went: devices, operations, messages between "
        "replicas, waits for input, and how many operations of each kind ran where.",
    )
    parser.add_argument(
        "file",
        type=_path,
        metavar="FILE",
        help="tf_trace-<step>.json or <task>.xplane.pb of callbacks.ProfilerTrace, or a "
        "folder, of which the newest trace is taken",
    )
    parser.add_argument("--top", type=int, default=15, metavar="N", help="rows (default: 15)")
    parser.add_argument(
        "--count",
        metavar="KIND",
        help="print only how many operations of this kind ran on each device",
    )
    parser.set_defaults(command=_trace)


def _trace(parsed: argparse.Namespace) -> int:
    from kerasdist import trace
    from kerasdist.trace.report import report

    with arguments_checked():
        check_int("--top", parsed.top, at_least=1)
    file = trace.newest(parsed.file)
    text = report(trace.read(file), num_top=parsed.top, kind=parsed.count)
    if file != parsed.file:
        print(f"{file}, the newest trace in {parsed.file}:\n")
    print(text)
    return 0


def _add_inspect(commands: Any):
    parser = commands.add_parser(
        "inspect",
        help="list what a checkpoint holds, or compare two",
        description="Lists the weights in a checkpoint with their shapes, dtypes and sizes, and "
        "when and by which versions it was written. Given two, says where they differ.",
    )
    parser.add_argument(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="a folder of callbacks.Checkpoint, a file of Keras, or a checkpoint of TensorFlow",
    )
    parser.set_defaults(command=_inspect)


def _inspect(parsed: argparse.Namespace) -> int:
    if len(parsed.checkpoints) > 2:
        raise UsageError(f"Name one checkpoint, or two. Received: {len(parsed.checkpoints)}.")
    from kerasdist.weights import place

    with arguments_checked():
        for path in parsed.checkpoints:
            place.check(path.rstrip("/") or path)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Only the list is to be printed.
    from kerasdist.weights.listing import comparison, listing

    with arguments_checked():
        text = (listing if len(parsed.checkpoints) == 1 else comparison)(*parsed.checkpoints)
    print(printable(text))
    return 0


def _add_show(commands: Any):
    parser = commands.add_parser(
        "show",
        help="draw the curves of runs, and say what limited them",
        description="Draws loss, metrics, learning rate and examples/s of one or several runs into "
        "a PNG, from their event files, and says what limited each.",
    )
    parser.add_argument(
        "runs", nargs="+", type=_path, metavar="RUN", help="a folder of event files, or of runs"
    )
    parser.add_argument(
        "--output", type=_path, default=Path("run.png"), metavar="PNG", help="default: run.png"
    )
    parser.set_defaults(command=_show)


def _show(parsed: argparse.Namespace) -> int:
    for run in parsed.runs:
        if not run.is_dir():  # Checked before TensorFlow is loaded, which takes seconds.
            told = f"{run} is a file" if run.exists() else f"There is no folder {run}"
            raise UsageError(f"{told}. Name the folder of a run's event files.")
    from kerasdist.show import show

    print(show(parsed.runs, parsed.output))
    return 0


def _workers(text: str) -> int | tuple[int, int]:
    fewest, colon, most = text.partition(":")
    try:
        return (int(fewest), int(most)) if colon else int(fewest)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number, such as 4, or a range, such as 1:4. Received: {text!r}."
        ) from None


_COUNT = {"type": int, "metavar": "N"}
_SECS = {"type": float, "metavar": "SECS"}
# By the setting of the launcher that each is for.
_LAUNCH_FLAGS: dict[str, tuple[str, str, dict]] = {
    "num_workers": (
        "--workers",
        "workers; of 1:4, the job goes on with those that are left if one is lost",
        {"type": _workers, "metavar": "N or MIN:MAX"},
    ),
    "num_ps": ("--ps", "parameter servers, with a chief", _COUNT),
    "chief": ("--chief", "a chief in addition to the workers", {"action": "store_true"}),
    "evaluator": ("--evaluator", "an evaluator as well", {"action": "store_true"}),
    "num_clones": ("--clones", "replicas of each worker", _COUNT),
    "num_backup_workers": (
        "--backup",
        "with --ps, synchronous workers: an update does without so many of the slowest",
        _COUNT,
    ),
    "max_restarts": (
        "--max-restarts",
        "restarts of the whole cluster; with --ps, of a lost worker too; with a range of workers, "
        "in a row without a new checkpoint (default: 0; 3 with a range)",
        _COUNT,
    ),
    "grace_secs": ("--grace-secs", "time to end after TERM, before KILL", _SECS),
    "timeout_secs": ("--timeout-secs", "time for everything", _SECS),
    "start_timeout_secs": (
        "--start-timeout-secs",
        "with a range, time to wait while fewer than MIN workers can run",
        _SECS,
    ),
    "resize_secs": (
        "--resize-secs",
        "with a range, time after which a lost worker comes back",
        _SECS,
    ),
    "frozen_timeout_secs": ("--frozen-timeout-secs", "time a task may be halted", _SECS),
    "log_dir": (
        "--log-dir",
        "one file per task; otherwise kerasdist_logs/<run id>",
        {"metavar": "DIR"},
    ),
    "network": (
        "--network",
        "isolated: the cluster reaches no other machine, and none reaches it (default, except "
        "with --rendezvous)",
        {"choices": launcher.NETWORKS},
    ),
    "rendezvous": (
        "--rendezvous",
        "where the launches of one job meet, one on each machine, each with one worker; the one "
        "on HOST leads",
        {"metavar": "HOST:PORT"},
    ),
}


def _add_launch(commands: Any):
    parser = commands.add_parser(
        "launch",
        usage="python -m kerasdist launch [OPTION ...] -- PROGRAM [ARGUMENT ...]",
        help="run a program as all tasks of a cluster on this machine, or as one of a job on many",
        description="Runs a program as all tasks of a cluster on this machine or, with "
        "--rendezvous, as one worker of a job on many machines, with TF_CONFIG set "
        "for each. The exit code is that of the task that failed first; docs/clusters.md lists "
        "them.",
    )
    for name, (flag, text, options) in _LAUNCH_FLAGS.items():
        default = getattr(launcher.DEFAULTS, name)
        text += f" (default: {default})" if default else ""
        parser.add_argument(flag, dest=name, default=default, help=text, **options)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the command, after --")
    parser.set_defaults(command=_launch)


def _launch(parsed: argparse.Namespace) -> int:
    names = [field.name for field in dataclasses.fields(launcher.Settings)]
    settings = {name: getattr(parsed, name) for name in names}
    flags = {name: flag for name, (flag, *_) in _LAUNCH_FLAGS.items()}
    with arguments_checked(flags):
        launcher.Settings(**settings)
        program = checked(_command_of(parsed))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # By a script that starts it with `&`.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with flags_named(flags):
            return launcher.launch(program, **settings).exit_code
    except KeyboardInterrupt:
        return SIGNALED + signal.SIGINT


def _command_of(parsed: argparse.Namespace) -> list[str]:
    return parsed.program[1:] if parsed.program[:1] == ["--"] else parsed.program


def _path(text: str) -> Path:
    if not text:
        # As a Path it would be the current folder, which nobody has named.
        raise argparse.ArgumentTypeError(
            "must not be empty. Received: ''. Name a file or a folder."
        )
    return Path(text)


if __name__ == "__main__":
    leave(main())
