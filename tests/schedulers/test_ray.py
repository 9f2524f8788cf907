"""Ray starts the workers, and starts them again after one was killed."""

from tests.libraries.examples import needs
from tests.schedulers import training
from tests.schedulers.commands import RAY
from tests.schedulers.processes import ROOT

pytestmark = needs("ray")


def test_workers_start_again_after_one_was_killed(processes, folder):
    # Not tests/lean, which hides packages that Ray needs.
    variables = {"PYTHONPATH": str(ROOT), "FOLDER": str(folder)}
    outcome = processes.run(RAY, timeout_secs=250, KILL_AT="9", **variables)

    assert outcome.exit_code == 0, outcome.output
    assert (folder / "killed").exists()
    assert [steps[0] for steps in training.attempts(folder)] == [1, 9]
    training.assert_equals_one_device(folder)
