"""The course of a launch on several machines, which are pretended here."""

import itertools
from pathlib import Path

import pytest

from kerasdist.cluster import Task
from kerasdist.launcher.leader import Leader
from kerasdist.launcher.machine import Outcome
from kerasdist.processes.result import TaskResult
from kerasdist.processes.settings import Settings

pytestmark = pytest.mark.timeout(30)


class PretendedMachine:
    """A machine whose attempts end as they are told: a list of exit codes for each of them.

    None is a task that runs until it is told to end, and then saves and ends with 143.
    """

    def __init__(self, name, *attempts, num_places=1):
        self.name, self.num_places, self.newest_step = name, num_places, None
        self._attempts = iter(attempts)
        self.started = []

    def addresses(self, number):
        return [f"{self.name}:{port}" for port in range(number)]

    def start(self, tasks, addresses, attempt):
        self.started.append([str(task) for task in tasks])
        self._tasks, self._codes = tasks, next(self._attempts)
        self._is_told = False

    def look(self):
        if self._is_told:
            self._codes = [143 if code is None else code for code in self._codes]
            self.newest_step = (self.newest_step or 0) + 1
        if None in self._codes:
            return None
        results = tuple(
            TaskResult(task=task, exit_code=code, was_stopped=code == 143, log=Path("log"))
            for task, code in zip(self._tasks, self._codes, strict=True)
        )
        failed = [each for each in results if each.exit_code and not each.was_stopped]
        failed.sort(key=lambda each: each.exit_code == 138)
        cause = failed[0] if failed else None
        failure = f"{cause.task} failed with {cause.exit_code}" if cause else ""
        return Outcome(tasks=results, root_cause=cause, failure=failure, has_joined=True)

    def stop(self, loss=""):
        self._is_told = True


def led(machines, num_workers, **settings):
    """Returns the result of a launch and what was said, line by line."""
    said = []
    leader = Leader(
        Settings(num_workers=num_workers, **settings),
        machines if callable(machines) else lambda: machines,
        say=said.append,
        plan=lambda tasks, addresses: f"{len(tasks)} tasks at {sorted(set(addresses.values()))}",
    )
    return leader.run(), "\n".join(said)


def test_workers_are_numbered_over_the_machines():
    first = PretendedMachine("a", [0, 0, 0], num_places=2)
    second = PretendedMachine("b", [0])

    result, said = led([first, second], 3, evaluator=True)

    assert (first.started, second.started) == (
        [["worker 0", "worker 1", "evaluator 0"]],
        [["worker 2"]],
    )
    assert [str(each.task) for each in result.tasks] == [
        *("worker 0", "worker 1", "worker 2", "evaluator 0"),
    ]
    assert said.startswith("4 tasks at ['a:0', 'a:1', 'b:0']\nAll tasks done")


def test_a_machine_that_is_lost_is_left_out_and_the_root_cause_of_the_failed_peers():
    first = PretendedMachine("a", [138], [0])
    second = PretendedMachine("b", [137])

    result, said = led(lambda: [first, second][: 1 if second.started else 2], (1, 2))

    assert result.exit_code == 0
    assert first.started == [["worker 0"], ["worker 0"]]
    assert "Lost worker 1 after 0.0 s: worker 1 failed with 137.\n" in said
    assert "--- restart 1: 1 of 2 workers, no checkpoint of this launch ---" in said


def test_a_worker_that_was_aborted_because_of_an_error_of_another_is_not_lost():
    first, second = PretendedMachine("a", [1], [0]), PretendedMachine("b", [134], [0])

    result, said = led([first, second], (1, 2))

    assert result.exit_code == 0
    assert second.started == [["worker 1"], ["worker 1"]]
    assert "Lost" not in said
    assert "--- restart 1: 2 of 2 workers" in said


def test_a_lost_evaluator_costs_no_place_of_a_worker():
    machine = PretendedMachine("a", [138, 138, 137], [0, 0, 0], num_places=2)

    result, said = led([machine], (1, 2), evaluator=True)

    assert result.exit_code == 0
    assert machine.started == [["worker 0", "worker 1", "evaluator 0"]] * 2
    assert "Lost" not in said


def test_the_others_save_when_a_machine_leaves():
    first, second = PretendedMachine("a", [None], [0]), PretendedMachine("b", [None])

    def machines():
        if second.started:
            second.num_places = 0
        return [first, second]

    result, said = led(machines, (1, 2), max_restarts=0)

    assert (result.exit_code, result.num_restarts) == (0, 1)
    assert "b leaves: all save and end, and the others go on." in said
    assert "--- restart 1: 1 of 2 workers, checkpoint of step 1 ---" in said


def test_a_machine_that_comes_takes_part_after_the_next_checkpoint():
    first, second = PretendedMachine("a", [None], [0]), PretendedMachine("b", [0])
    count = itertools.count()

    def machines():
        if first.started and next(count) > 3:
            first.newest_step = first.newest_step or 7
        return [first, second] if first.started else [first]

    result, said = led(machines, (1, 2), start_timeout_secs=0.1, resize_secs=600)

    assert result.exit_code == 0
    assert (first.started, second.started) == ([["worker 0"], ["worker 0"]], [["worker 1"]])
    assert "2 workers can run now, not only 1: the job saves, and goes on with all 2." in said


def test_an_interrupt_stops_all_machines_and_waits_for_them():
    first, second = PretendedMachine("a", [None]), PretendedMachine("b", [None])
    said = []

    def machines():
        if second.started and not said[1:]:
            raise SystemExit(143)
        return [first, second]

    leader = Leader(
        Settings(num_workers=(1, 2)), machines, say=said.append, plan=lambda *_: "the plan"
    )
    with pytest.raises(SystemExit, match="143"):
        leader.run()

    assert first.look().tasks[0].exit_code == second.look().tasks[0].exit_code == 143
    assert said[0] == "the plan"
    assert said[1].startswith("Stopping all tasks.")
    assert said[2].startswith("All tasks stopped after ")


def test_too_few_machines_are_waited_for_and_then_given_up():
    result, said = led([PretendedMachine("a")], (2, 4), start_timeout_secs=0.2)

    assert result.exit_code == 138
    assert said == "1 of at least 2 workers can run, and no more came for 0.2 s."


def test_a_job_that_has_lost_too_many_says_for_how_many_it_waits():
    first, second = PretendedMachine("a", [138]), PretendedMachine("b", [137])
    machines = [first, second]

    result, said = led(
        lambda: machines[: 1 if second.started else 2], (2, 2), start_timeout_secs=0.2
    )

    assert (result.exit_code, result.root_cause) == (138, None)
    assert "\nWaiting for workers: 1 of at least 2 can run; 0 s left.\n" in said


def test_the_time_of_a_launch_is_also_that_of_its_waiting():
    result, said = led([PretendedMachine("a")], 2, timeout_secs=0.1)

    assert result.exit_code == 124
    assert said == "Not done within 0.1 s; 1 of at least 2 workers can run."


def test_a_machine_that_ends_without_an_address_is_asked_again():
    machine = PretendedMachine("a", [0])
    answers = iter([[], ["a:1"]])
    machine.addresses = lambda number: next(answers)

    result, _ = led([machine], 1)

    assert result.tasks[0].task == Task("worker", 0)
