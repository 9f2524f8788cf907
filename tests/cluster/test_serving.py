"""Workers and ps tasks serve the chief and end with it: real processes, real TensorFlow."""

import re

import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import peer_failure
from tests.cluster import outcomes
from tests.cluster.outcomes import of

nothing_is_left_behind = outcomes.nothing_is_left_behind
started = outcomes.started
outcome = outcomes.outcome

ENDS = r"{} \(127\.0\.0\.1:\d+\) ends because {} \(127\.0\.0\.1:\d+\) {}"
SERVING = ("worker 0", "ps 0")

# The chief counts to 20 on the workers, and calls `act()` in between.
PROGRAM = """
import json, os, pathlib, signal, subprocess, sys, tempfile, time

import tensorflow as tf

import kerasdist

task = "{type} {index}".format(**json.loads(os.environ["TF_CONFIG"])["task"])


def mark(task):
    return pathlib.Path(tempfile.gettempdir()) / f"{os.environ['KERASDIST_RUN_ID']} {task}"


def kill(task, number=signal.SIGKILL):
    os.kill(int(mark(task).read_text()), number)


def act():
    pass


@tf.function
def add():
    tf.print("works", output_stream=sys.stderr)
    total.assign_add(1.0)


def run_10_times():
    for _ in range(10):
        strategy.deployment.remote.coordinator.schedule(add)
    strategy.deployment.remote.coordinator.join()


def run(**options):
    global strategy, total
    mark(task).write_text(str(os.getpid()))
    strategy = kerasdist.make_strategy(start_timeout_secs=100, **options)
    with strategy.scope():
        total = tf.Variable(0.0)
    run_10_times()
    print(f"acts at {time.time()}", flush=True)
    act()
    run_10_times()
    print("total:", total.numpy(), flush=True)
"""


def alone(source: str):
    """Runs a chief, a worker and a ps that nobody stops."""
    return outcomes.alone(PROGRAM + source, num_workers=1, num_ps=1)


def launched(source: str, *options: str):
    """Runs a chief, two workers and a ps by `python -m kerasdist launch`."""
    return outcomes.launched(PROGRAM + source, "--ps=1", *options)


def assert_all_end_because(cause: str, outputs: list[str]):
    for task, output in zip(SERVING, outputs, strict=True):
        assert re.search(ENDS.format(task, "chief 0", cause), output)
        assert "Exit code 138: a peer failed" in output
        assert "Traceback" not in output


@of(alone, "run()")
def test_what_serves_ends_when_the_chief_is_done(outcome):
    assert outcome.codes == [0, 0, 0]
    assert "total: 20.0" in outcome.outputs[0]
    for output in outcome.outputs[1:]:
        assert output.splitlines()[-1] == "the job is over."


@of(
    alone,
    """
def act():
    raise ValueError("my own bug")

run()
""",
)
def test_error_of_the_chief_is_told_to_what_serves(outcome):
    assert outcome.codes == [1, 138, 138]
    assert outcome.secs < 30
    assert outcome.outputs[0].endswith("ValueError: my own bug\n")
    assert_all_end_because("failed: ValueError: my own bug", outcome.outputs[1:])


@of(
    alone,
    """
def act():
    os.kill(os.getpid(), signal.SIGKILL)

run(chief_timeout_secs=3)
""",
)
def test_what_serves_ends_when_the_chief_is_gone(outcome):
    assert outcome.codes == [137, 138, 138]
    assert outcome.secs < 30
    assert_all_end_because("is gone, for 3 s: connection refused", outcome.outputs[1:])


@of(
    alone,
    """
def act():
    if os.environ["ATTEMPT"] == "first":
        os.kill(os.getpid(), signal.SIGKILL)

if task == "chief 0" and "ATTEMPT" not in os.environ:
    for attempt in ("first", "second"):
        ended = subprocess.run(sys.orig_argv, env={**os.environ, "ATTEMPT": attempt})
        print(attempt, ended.returncode, flush=True)
    sys.exit(ended.returncode)
run(chief_timeout_secs=3, wait_for_chief=True)
""",
)
def test_what_serves_waits_for_a_chief_that_comes_back_where_told_so(outcome):
    assert outcome.codes == [0, 0, 0]
    chief, *serving = outcome.outputs
    assert re.findall(r"(\w+) (-?\d+)\n", chief)[-2:] == [("first", "-9"), ("second", "0")]
    assert chief.count("total: 20.0") == 1
    for task, output in zip(SERVING, serving, strict=True):
        assert f"{task} starts over and waits for the chief: chief 0 (127.0.0.1:" in output
        assert output.splitlines()[-1] == "the job is over."


@of(
    launched,
    """
def act():
    kill("worker 1")
    # The launcher's log; the folder is that of this launch alone.
    [log] = pathlib.Path().glob("kerasdist_logs/*/worker-1.log")
    deadline = time.monotonic() + 100
    while "works" not in log.read_text().partition("joins the job")[2]:
        assert time.monotonic() < deadline
        run_10_times()
        time.sleep(0.1)

run()
""",
    "--max-restarts=1",
)
def test_killed_worker_joins_again_and_works(outcome):
    [output] = outcome.outputs
    assert outcome.codes == [0]
    assert re.search(r"\nworker 1 was ended by a signal: Killed .* starts again, 1 of 1\.", output)
    assert "joins the job, which runs already." in output
    assert output.count("the job is over.") == 3
    assert float(re.findall(r"total: (\S+)", output)[0]) % 10 == 0
    assert "All tasks done" in output.splitlines()[-1]


@of(
    launched,
    """
def act():
    kill("worker 1", signal.SIGTERM)

run()
""",
)
def test_job_goes_on_without_a_worker_that_term_has_ended_and_ends_in_time(outcome):
    [output] = outcome.outputs
    assert outcome.codes == [0]
    assert outcome.secs < 45
    assert "worker 1 was ended by a signal: Terminated (exit code 143). The job goes on" in output
    assert "total: 20.0" in output
    assert "; lost: worker 1." in output.splitlines()[-1]


@of(
    alone,
    """
def act():
    kill("ps 0")

run()
""",
)
def test_killed_ps_ends_the_job_and_is_named(outcome):
    assert outcome.codes == [138, 138, 137]
    assert outcome.secs < 30
    *_, who, code, reason = outcome.outputs[0].splitlines()
    assert re.fullmatch(ENDS.format("chief 0", "ps 0", "is gone: the connection to it broke."), who)
    assert "Exit code 138: a peer failed, and chief 0 did nothing wrong." in code
    assert reason.startswith("  TensorFlow: UnavailableError: ")
    assert re.search(r"ends because ps 0 \(127\.0\.0\.1:\d+\) is gone", outcome.outputs[1])


@pytest.mark.exhaustive  # As in test_faults.py.
@of(
    alone,
    """
tf_config = json.loads(os.environ["TF_CONFIG"])
tf_config["cluster"]["worker"].append("127.0.0.1:1")
os.environ["TF_CONFIG"] = json.dumps(tf_config)
kerasdist.make_strategy(start_timeout_secs=30)
""",
)
def test_worker_that_never_starts_is_named(outcome):
    assert outcome.codes == [138, 138, 138]
    for output in outcome.outputs:
        assert "The cluster was not complete within 30 s. chief 0" in output
        assert "worker 1 (127.0.0.1:1): connection refused" in output


@pytest.mark.parametrize(
    ("named", "cause"),
    [
        ("/job:ps/replica:0/task:0/device:CPU:0", "ps 0 (c:1) is gone"),
        # As the worker reports it that could not reach the ps.
        ("/job:ps/replica:0/task:0 /job:worker/replica:0/task:0", "ps 0 (c:1) is gone"),
        ("/job:worker/replica:0/task:0", "worker 0 (b:1) is gone"),
    ],
)
def test_lost_ps_is_the_cause_and_not_a_worker_that_misses_it(named, cause):
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    error = tf.errors.UnavailableError(None, None, f"Connection reset, remote target {named}")

    found = peer_failure.cause_of(error, Cluster(jobs=jobs, task=Task("chief", 0)))

    assert found.startswith(cause)
