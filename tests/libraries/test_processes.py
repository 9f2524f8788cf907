"""Other libraries start processes, each of which trains for itself."""

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.libraries.examples import example, needs, run_alone

PYTEST = "import pytest, sys; sys.exit(pytest.main(['--numprocesses', '2', 'test_mine.py']))"


@needs("joblib")
def test_processes_of_joblib_each_train():
    slow, fast = ast.literal_eval(run_alone(example("joblib")).strip().splitlines()[-1])

    assert fast < slow


@needs("xdist")
def test_tests_run_beside_each_other():
    Path("test_mine.py").write_text(example("pytest-xdist"))

    assert "2 passed" in run_alone(PYTEST)


@pytest.mark.thorough
@needs("keras_tuner")
def test_keras_tuner_shares_trials_among_processes(folder):
    program = example("keras-tuner").replace("    overwrite=True,\n", "")
    address = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": "28123"}
    with ThreadPoolExecutor() as pool:
        outputs = [
            pool.submit(run_alone, program, KERASTUNER_TUNER_ID=name, **address)
            for name in ("chief", "tuner0", "tuner1")
        ]
        for output in outputs:
            output.result()

    assert len(list(folder.glob("tuner/untitled_project/trial_*/trial.json"))) == 3
