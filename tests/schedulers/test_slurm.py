"""Slurm starts the workers, and starts them again after its time limit or the loss of one."""

import re

import pytest

from tests.schedulers import slurm, training
from tests.schedulers.commands import SBATCH, SRUN, SRUN_WITH_PS

pytestmark = slurm.needs_slurm


@pytest.fixture(autouse=True)
def daemons(processes):
    """Slurm runs."""
    with slurm.running(processes):
        yield


def test_srun_starts_workers_that_train_as_one_device_does(processes, folder):
    outcome = processes.run(SRUN)

    assert outcome.exit_code == 0, outcome.output
    assert "2 replicas as worker 1 of 2 workers, from Slurm" in outcome.output
    training.assert_equals_one_device(folder)


def test_the_last_tasks_of_a_step_may_be_parameter_servers(processes, folder):
    outcome = processes.run(SRUN_WITH_PS)

    assert outcome.exit_code == 0, outcome.output
    assert training.attempts(folder) == [list(range(1, 25))]
    training.assert_equals_one_device(folder)


@pytest.mark.timeout(500)
def test_a_job_goes_on_after_its_time_limit_and_after_the_loss_of_a_worker(processes, folder):
    (folder / "slow").write_text("5")
    job = submit(processes, SBATCH_TIMELIMIT="2", KILL_AT="23")
    training.wait_for_attempt(folder, 2, steps=1)
    processes.run(f"scontrol update JobId={job} TimeLimit=30")
    (folder / "slow").unlink()
    said = slurm.finished_job(processes, job, timeout_secs=200)

    log = (folder / f"train-{job}.log").read_text()
    assert "JobState=COMPLETED" in said and "Restarts=2" in said, said + log
    assert re.findall(r"Ended with (\d+)", log) == ["143", "138"]
    first, second, third = training.attempts(folder)
    assert second[0] == first[-1] + 1  # All workers have saved at the same step.
    assert third == [23, 24]
    training.assert_equals_one_device(folder)


def test_a_job_whose_program_has_an_error_is_not_put_into_the_queue_again(processes, folder):
    program = "import os, sys; sys.exit(1 if os.environ['SLURM_PROCID'] == '1' else 138)"
    (folder / "train.py").write_text(program)

    job = submit(processes)

    said = slurm.finished_job(processes, job, timeout_secs=60)
    assert "JobState=FAILED" in said and "ExitCode=1:0" in said and "Restarts=0" in said


def submit(processes, **variables: str) -> str:
    submitted = processes.run(SBATCH, **variables)
    assert submitted.exit_code == 0, submitted.output
    return re.findall(r"\d+", submitted.output)[-1]
