"""torchrun starts the workers, and starts those that are left again after the loss of one."""

import socket

from tests.schedulers import training
from tests.schedulers.commands import TORCHRUN, TORCHRUN_ELASTIC
from tests.schedulers.processes import needs

pytestmark = needs("torchrun", package="PyTorch's CPU build; see CONTRIBUTING.md")


def test_workers_start_again_after_one_was_killed(processes, folder):
    outcome = processes.run(TORCHRUN, KILL_AT="9")

    assert outcome.exit_code == 0, outcome.output
    assert (folder / "killed").exists()
    assert [steps[0] for steps in training.attempts(folder)] == [1, 9]
    training.assert_equals_one_device(folder)


def test_a_machine_may_come_later_and_be_lost(processes, folder):
    (folder / "slow").write_text("2")
    variables = {
        "ADDRESS": f"localhost:{free_port()}",
        # The rendezvous waits for a second machine before it starts with one.
        "PET_RDZV_CONF": "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=8",
    }
    one = processes.start("bash", "-c", TORCHRUN_ELASTIC, **variables)
    training.wait_for_attempt(folder, 1, steps=3)
    other = processes.start("bash", "-c", TORCHRUN_ELASTIC, **variables)
    training.wait_for_attempt(folder, 2, steps=3)
    other.kill()
    (folder / "slow").unlink()
    outcome = one.wait(120)

    assert outcome.exit_code == 0, outcome.output
    assert "2 replicas" in outcome.output
    alone, both, left = training.attempts(folder)
    # TERM ends the first attempt, so that nothing is lost; KILL the second one.
    assert alone + both == [*range(1, both[-1] + 1)]
    assert left == [*range(left[0], 25)] and left[0] >= both[-1] - 1
    training.assert_equals_one_device(folder)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
