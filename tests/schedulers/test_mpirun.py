"""Open MPI's mpirun tells each process its rank; the processes meet by themselves."""

import pytest

from tests.schedulers import training
from tests.schedulers.commands import MPIRUN, MPIRUN_WITH_PS
from tests.schedulers.processes import needs

pytestmark = needs("mpirun", package="Debian's openmpi-bin")


@pytest.fixture(autouse=True)
def open_mpi(processes):
    """It starts processes of root, and more than there are cores."""
    processes.variables |= {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }


def test_a_killed_worker_ends_the_job_and_the_same_command_goes_on(processes, folder):
    killed = processes.run(MPIRUN, KILL_AT="9")

    assert killed.exit_code == 137, killed.output
    assert (folder / "killed").exists(), killed.output
    # mpirun kills the others, which may see the loss before.
    assert killed.output.count("worker 0 (127.0.0.1:") <= 1
    assert "Traceback" not in killed.output

    again = processes.run(MPIRUN)

    assert again.exit_code == 0, again.output
    assert [steps[0] for steps in training.attempts(folder)] == [1, 9]
    training.assert_equals_one_device(folder)


def test_the_last_ranks_may_be_parameter_servers(processes, folder):
    outcome = processes.run(MPIRUN_WITH_PS)

    assert outcome.exit_code == 0, outcome.output
    assert training.attempts(folder) == [list(range(1, 25))]
    training.assert_equals_one_device(folder)
