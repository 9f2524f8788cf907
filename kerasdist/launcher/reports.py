"""What a launch says of itself: its plan, its restarts, and how it ended."""

import signal
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kerasdist.cluster import Task
from kerasdist.messages.address import split_address
from kerasdist.processes.guard import ISOLATED
from kerasdist.processes.result import LaunchResult, TaskResult
from kerasdist.processes.settings import Settings
from kerasdist.processes.task_environment import addresses_of_this_machine
from kerasdist.processes.task_log import RESTART_MARK, last_lines
from kerasdist.support import environment
from kerasdist.support.exit_codes import PEER_FAILED, SIGNALED, USAGE
from kerasdist.support.text import counted, in_columns

_LONGEST_TITLE = 200


def describe_plan(
    title: str,
    settings: Settings,
    tasks: Sequence[Task],
    addresses: Mapping[Task, str],
    *,
    network: str,
    log_dir: Path | str,
) -> str:
    """Returns the plan of a launch on this machine.

    Args:
        title: What the plan calls the program.
        settings: Those of the launch.
        tasks: Those of the first attempt.
        addresses: Theirs; an evaluator has none.
        network: Which one, and who else is there.
        log_dir: The folder of the logs.
    """
    rows = [("program", textwrap.shorten(title, _LONGEST_TITLE))]
    if settings.is_elastic:
        rows += [("workers", f"{settings.fewest_workers} to {settings.most_workers}")]
    rows += [(str(task), addresses.get(task, "outside the cluster")) for task in tasks]
    rows += [("network", network), ("logs", f"{log_dir}")]
    return "\n".join(["Launch", *(f"  {line}" for line in in_columns(rows))])


def describe_network(network: str, addresses: Mapping[Task, str]) -> str:
    """Returns which network the tasks of this machine have.

    Args:
        network: "isolated", or why it is not.
        addresses: Those of the tasks.
    """
    if network == ISOLATED:
        return "isolated: the tasks reach each other and no one else"
    return (
        f"that of this machine: {ports(addresses)} open, without a password, on "
        f"{', '.join(addresses_of_this_machine())}"
    )


def ports(addresses: Mapping[Task, str]) -> str:
    """Returns the ports of tasks in a row."""
    numbers = [str(split_address(address)[1]) for address in addresses.values()]
    return f"port{'' if len(numbers) == 1 else 's'} {', '.join(numbers)}"


def open_ports_warning(reason: str, addresses: Mapping[Task, str]) -> str:
    """Returns what is said if a launch cannot have a network of its own."""
    return (
        f"warning: The cluster is open to the network ({reason}). TensorFlow's servers listen on "
        f"every interface, without authentication, on {ports(addresses)}: whoever connects can "
        "run programs as you. Close them with a firewall, or allow user namespaces "
        "(docs/clusters.md)."
    )


def unreachable_state_warning() -> str:
    """Returns what is said if the tasks are to tell their state in a network of their own."""
    return (
        f"warning: {environment.STATUS_PORT} is set, but nobody outside of the launch reaches its "
        f"network. Use --network=host, or {environment.STATUS_FILE}."
    )


def describe_separate_runs(num_tasks: int) -> str:
    """Returns the warning of a program that none of its tasks has made a cluster of."""
    return (
        "warning: No task called `kerasdist.make_strategy`. Unless it joins the cluster in another "
        f"way, the program ran {num_tasks} times, each by itself. Let it call "
        "`strategy = kerasdist.make_strategy()` first, and make and compile its model in "
        "`with strategy.scope():`."
    )


def describe_timeout(result: LaunchResult) -> str:
    """Returns the message of a launch that took too long: what each task did last."""
    logs = [f"Last lines of {each.task}:\n{_describe_log(each.log)}" for each in result.tasks]
    return "\n".join([result.reason, *logs])


def _describe_log(log: Path) -> str:
    return "\n".join(f"  {line}" for line in [*last_lines(log), f"({log})"])


def describe_failure(failure: str, secs: str, tasks: Sequence[TaskResult], *, code: int) -> str:
    """Returns how an attempt failed, in one sentence.

    Args:
        failure: How its root cause failed.
        secs: Since the launch began, with their unit.
        tasks: How each ended.
        code: The exit code of the root cause.
    """
    also = ""
    if done := names(done_before_failed_peer(code, tasks)):
        also = f"; ended before it without an error: {done}"
    return f"{failure} after {secs}, the first to fail{also}"


def describe_rest(lost: Sequence[Task], tasks: Iterable[TaskResult]) -> str:
    """Returns which tasks the job did without, and which were stopped, after a semicolon."""
    stopped = names(result.task for result in tasks if result.was_stopped)
    also = f"; stopped: {stopped}" if stopped else ""
    return f"; lost: {names(lost)}{also}" if lost else also


def why_hopeless(
    code: int, tasks: Sequence[TaskResult], error: str | None, last_error: str | None
) -> str:
    """Returns why another attempt would be in vain; "" if it may not be.

    Args:
        code: The exit code of the root cause.
        tasks: How each task ended.
        error: What the program said, if it failed with an error of its own.
        last_error: The same of the attempt before.
    """
    if code == USAGE:
        return "exit code 2 means that the program was called wrongly"
    if done := names(done_before_failed_peer(code, tasks)):
        return (
            f"no worker failed, and the program of {done} was over before that of the others; all "
            "workers must call `fit` and `evaluate`, in the same order"
        )
    if error is not None and error == last_error:
        return "the program failed with the same error twice in a row"
    return ""


def done_before_failed_peer(code: int, tasks: Iterable[TaskResult]) -> list[Task]:
    """Returns the synchronous workers that had ended in order if one says that a peer failed."""
    if code != PEER_FAILED or any(each.task.job == "ps" for each in tasks):
        return []
    done = [each.task for each in tasks if each.exit_code == 0 and not each.was_stopped]
    return [task for task in done if task.job != "evaluator"]


def describe_unsaved(tasks: Iterable[TaskResult], grace_secs: float) -> str:
    """Returns the warning of tasks that were killed before they had saved; "" if none were."""
    killed = [
        each.task
        for each in tasks
        if each.was_stopped and each.exit_code == SIGNALED + signal.SIGKILL
    ]
    if not killed:
        return ""
    return (
        f"warning: {names(killed)} had not saved {grace_secs:g} s after TERM and was killed: the "
        "job goes on from the checkpoint before. `--grace-secs` gives more time."
    )


def restart_mark(settings: Settings, num_restarts: int, num_workers: int, step: int | None) -> str:
    """Returns the line before an attempt that is not the first, for console and logs.

    Args:
        settings: Those of the launch.
        num_restarts: How often the cluster was started again, with this time.
        num_workers: With how many workers it goes on.
        step: That of the newest checkpoint, if this launch has written one.
    """
    if not settings.is_elastic:
        return f"{RESTART_MARK} {num_restarts} of {settings.most_restarts} ---"
    whence = "no checkpoint of this launch" if step is None else f"checkpoint of step {step}"
    workers = f"{num_workers} of {counted(settings.most_workers, 'worker')}"
    return f"{RESTART_MARK} {num_restarts}: {workers}, {whence} ---"


def names(tasks: Iterable[Task]) -> str:
    """Returns the names of tasks in a row."""
    return ", ".join(str(task) for task in tasks)
