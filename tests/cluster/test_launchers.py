"""Every launcher of docs/clusters.md, by its variables: processes join, or say why not.

Each is a process of its own that needs no TensorFlow, and takes the names of all machines for this
one. The launchers that can be had are tested for real in tests/schedulers.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from kerasdist.cluster import launchers
from tests.test_preflight import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PROGRAM = """
import json, socket, sys
import kerasdist

resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: resolve("127.0.0.1", *rest, **more)
cluster = kerasdist.Cluster.from_env(timeout_secs=float(sys.argv[1]))
kerasdist.barrier("all are there", timeout_secs=60)
print(json.dumps([str(cluster.task), cluster.num_workers, cluster.num_ps, cluster.source]))
"""


def start(environ, timeout_secs: float) -> subprocess.Popen:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(timeout_secs)],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def port() -> str:
    return free_addresses(1)[0].rpartition(":")[2]


def ranks(rank: str, *names: str, **of_all: str) -> list[dict[str, str]]:
    """Returns the variables of two processes: what all have, and the rank of each, or its name."""
    # What has no port of its own meets at one that depends on the job.
    job = {"PMIX_NAMESPACE": f"{os.getpid()} {rank}"}
    return [{**job, **of_all, rank: name} for name in names or ("0", "1")]


def tf_config(
    variable: str = "TF_CONFIG", *, others=None, of_all=None, **numbers: int
) -> list[dict[str, str]]:
    """Returns the variables of the tasks of each job."""
    jobs = {
        job: [f"run-{job}-{index}.ns.svc:{port()}" for index in range(number)]
        for job, number in numbers.items()
    }
    tasks = [
        {"type": job, "index": index} for job, each in jobs.items() for index in range(len(each))
    ]
    cluster = {**jobs, **(others or {})}
    return [
        {variable: json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}
        | (of_all or {})
        for task in tasks
    ]


EVALUATOR = {"evaluator": ["run-evaluator-0.run:2222"]}
HOSTS = '["algo-1","algo-2"]'
# Ports that no other run of these tests takes.
SLURM = {
    "SLURM_JOB_ID": str(os.getpid()),
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
BY_HAND = {"KERASDIST_NUM_PROCESSES": "2"}
AWS = {"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1"}


def torchrun(**more: str) -> list[dict[str, str]]:
    known = {"WORLD_SIZE": "2", "MASTER_ADDR": "node-0", "MASTER_PORT": port()}
    return ranks("RANK", **known, **more)


def train_job(**more: str) -> list[dict[str, str]]:
    known = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_PORT": port()}
    return ranks("PET_NODE_RANK", PET_MASTER_ADDR="run-node-0-0.run", **known, **more)


def aws_batch() -> list[dict[str, str]]:
    child, main = ranks("AWS_BATCH_JOB_NODE_INDEX", AWS_BATCH_JOB_ID="1f", **AWS)
    return [main, child | {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.7"}]


def jobset() -> list[dict[str, str]]:
    pods = ranks("JOB_COMPLETION_INDEX", JOBSET_NAME="run", **BY_HAND)
    return [pod | {"HOSTNAME": f"run-node-0-{index}"} for index, pod in enumerate(pods)]


def at_address(rank: str) -> list[dict[str, str]]:
    return ranks(rank, KERASDIST_ADDRESS=f"node-0:{port()}", **BY_HAND)


def inside_of(outer: dict[str, str], inner: Callable) -> Callable:
    return lambda: [outer | each for each in inner()]


WORKERS = ("worker 0", "worker 1")
# By launcher: the variables of its processes, in order of rank, and what they are to be.
ROWS: dict[str, tuple[Callable[[], list[dict[str, str]]], tuple[str, ...], str]] = {
    "TFJob": (
        lambda: tf_config(chief=1, worker=1, ps=1),
        ("chief 0", "worker 0", "ps 0"),
        "TF_CONFIG",
    ),
    "Volcano, tensorflow": (
        lambda: tf_config(worker=2, others=EVALUATOR, of_all={"VC_TASK_INDEX": "1"}),
        WORKERS,
        "TF_CONFIG",
    ),
    "Vertex AI": (
        lambda: tf_config(chief=1, worker=1, of_all={"CLUSTER_SPEC": "{}"}),
        ("chief 0", "worker 0"),
        "TF_CONFIG",
    ),
    "Vertex AI, CLUSTER_SPEC alone": (
        lambda: tf_config("CLUSTER_SPEC", workerpool0=1, workerpool1=1),
        ("chief 0", "worker 0"),
        "CLUSTER_SPEC",
    ),
    "Azure": (lambda: tf_config(worker=2, of_all={"AZUREML_RUN_ID": "x"}), WORKERS, "TF_CONFIG"),
    "SageMaker, multi_worker_mirrored_strategy": (
        lambda: tf_config(worker=2, of_all={"SM_HOSTS": HOSTS, "SM_CURRENT_HOST": "algo-1"}),
        WORKERS,
        "TF_CONFIG",
    ),
    "SageMaker": (
        lambda: ranks("SM_CURRENT_HOST", "algo-1", "algo-2", SM_HOSTS=HOSTS),
        WORKERS,
        'SageMaker (SM_CURRENT_HOST=algo-1, SM_HOSTS=["algo-1","algo-2"])',
    ),
    "Ray": (lambda: tf_config(worker=2, of_all={"TF_USE_LEGACY_KERAS": "1"}), WORKERS, "TF_CONFIG"),
    "Slurm": (lambda: ranks("SLURM_PROCID", **SLURM), WORKERS, "Slurm (SLURM_PROCID=0)"),
    "torchrun": (
        lambda: torchrun(TORCHELASTIC_RUN_ID="1", LOCAL_RANK="0"),
        WORKERS,
        "torchrun (RANK=0, WORLD_SIZE=2)",
    ),
    "torchrun in a step of Slurm": (
        inside_of({"SLURM_PROCID": "0", **SLURM}, torchrun),
        WORKERS,
        "torchrun (RANK=0, WORLD_SIZE=2)",
    ),
    "TrainJob, torch": (train_job, WORKERS, "a TrainJob (PET_NODE_RANK=0, PET_NNODES=2)"),
    "TrainJob, torch, torchrun": (
        inside_of({"PET_NODE_RANK": "0", "PET_NNODES": "2"}, torchrun),
        WORKERS,
        "torchrun (RANK=0, WORLD_SIZE=2)",
    ),
    "TrainJob, jax": (
        lambda: ranks(
            "JAX_PROCESS_ID",
            JAX_NUM_PROCESSES="2",
            JAX_COORDINATOR_ADDRESS=f"run-node-0-0.run:{port()}",
        ),
        WORKERS,
        "a TrainJob (JAX_PROCESS_ID=0, JAX_NUM_PROCESSES=2)",
    ),
    "JobSet; TrainJob, plain": (
        jobset,
        WORKERS,
        "Kubernetes (JOB_COMPLETION_INDEX=0, KERASDIST_NUM_PROCESSES=2)",
    ),
    "Job": (
        lambda: at_address("JOB_COMPLETION_INDEX"),
        WORKERS,
        "Kubernetes (JOB_COMPLETION_INDEX=0, KERASDIST_NUM_PROCESSES=2)",
    ),
    "mpirun of Open MPI": (
        lambda: ranks(
            "OMPI_COMM_WORLD_RANK", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_SIZE="2"
        ),
        WORKERS,
        "mpirun (OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)",
    ),
    "mpirun of MPICH": (
        lambda: ranks("PMI_RANK", PMI_SIZE="2", MPI_LOCALNRANKS="1", MASTER_ADDR="node-0"),
        WORKERS,
        "mpirun (PMI_RANK=0, PMI_SIZE=2)",
    ),
    "PMIx": (
        lambda: at_address("PMIX_RANK"),
        WORKERS,
        "PMIx (PMIX_RANK=0, KERASDIST_NUM_PROCESSES=2)",
    ),
    "PALS": (
        lambda: at_address("PALS_RANKID"),
        WORKERS,
        "PALS (PALS_RANKID=0, KERASDIST_NUM_PROCESSES=2)",
    ),
    "SkyPilot": (
        lambda: ranks(
            "SKYPILOT_NODE_RANK", SKYPILOT_NUM_NODES="2", SKYPILOT_NODE_IPS="10.0.0.1\n10.0.0.2"
        ),
        WORKERS,
        "SkyPilot (SKYPILOT_NODE_RANK=0, SKYPILOT_NUM_NODES=2)",
    ),
    "Metaflow": (
        lambda: ranks(
            "MF_PARALLEL_NODE_INDEX", MF_PARALLEL_NUM_NODES="2", MF_PARALLEL_MAIN_IP="10.0.0.1"
        ),
        WORKERS,
        "Metaflow (MF_PARALLEL_NODE_INDEX=0, MF_PARALLEL_NUM_NODES=2)",
    ),
    "AWS Batch": (
        aws_batch,
        WORKERS,
        "AWS Batch (AWS_BATCH_JOB_NODE_INDEX=1, AWS_BATCH_JOB_NUM_NODES=2)",
    ),
    "Volcano, env and svc": (
        lambda: ranks(
            "VC_TASK_INDEX", VC_WORKER_NUM="2", VC_WORKER_HOSTS="run-worker-0.run,run-worker-1.run"
        ),
        WORKERS,
        "Volcano (VC_TASK_INDEX=0, VC_WORKER_NUM=2)",
    ),
    "Volcano, KERASDIST_NUM_PROCESSES": (
        lambda: at_address("VC_TASK_INDEX"),
        WORKERS,
        "Volcano (VC_TASK_INDEX=0, KERASDIST_NUM_PROCESSES=2)",
    ),
    "by hand": (
        lambda: at_address("KERASDIST_RANK"),
        WORKERS,
        "the environment (KERASDIST_RANK=0, KERASDIST_NUM_PROCESSES=2)",
    ),
}
ALONE = ["worker 0", 1, 0, ""]
# What does not join: its variables, and what it says in one line.
REFUSED = {
    "SageMaker, parameter_server": (
        lambda: tf_config(chief=1, worker=1, ps=1, of_all={"SM_CURRENT_HOST": "algo-1"}),
        "ValueError: TF_CONFIG: SageMaker's parameter_server distribution cannot work: .* Take",
    ),
    "Azure, parameter servers": (
        lambda: tf_config(worker=2, ps=1, of_all={"AZUREML_RUN_ID": "x"}),
        "ValueError: TF_CONFIG: Azure's TensorFlowDistribution with parameter servers cannot work",
    ),
    "mpirun on several machines": (
        lambda: ranks("OMPI_COMM_WORLD_RANK", OMPI_COMM_WORLD_SIZE="2"),
        "ValueError: mpirun: it has started .* Set KERASDIST_ADDRESS=host:port on all of them",
    ),
    "PMIx": (lambda: [{"PMIX_RANK": "1"}], "Warning: PMIx .* Set KERASDIST_NUM_PROCESSES, and"),
    "PALS": (lambda: [{"PALS_RANKID": "1"}], "Warning: PALS .* Set KERASDIST_NUM_PROCESSES, and"),
    "Job": (
        lambda: [{"JOB_COMPLETION_INDEX": "1"}],
        "Warning: Kubernetes .* Set KERASDIST_NUM_PROCESSES, and",
    ),
    "Job without an address": (
        lambda: ranks("JOB_COMPLETION_INDEX", **BY_HAND),
        "ValueError: Kubernetes: it has started .* Set KERASDIST_ADDRESS=host:port on all of them",
    ),
    "Volcano, several kinds of task": (
        lambda: [{"VC_TASK_INDEX": "0", "VC_PS_NUM": "1", "VC_WORKER_NUM": "1"}],
        r"Warning: Volcano .* Add `tensorflow: \[\]` to the plugins of its job",
    ),
    "sbatch": (lambda: [{"SLURM_NTASKS": "2"}], "Warning: Slurm .* Start it with `srun`, as in"),
    "no rank": (
        lambda: [BY_HAND],
        "ValueError: .* nothing which of them this is. Set KERASDIST_RANK",
    ),
}


MISSING = "Missing: rank 1."
NOT_LET_IN = "has not let this one, of rank 1, in"


def outcomes(environs, *, timeout_secs: float = 60) -> list[tuple[int, str, str]]:
    """Returns the exit code of each process, and what it wrote to stdout and stderr."""
    started = [start(environ, timeout_secs) for environ in environs]
    try:
        outputs = [each.communicate(timeout=90) for each in started]
    finally:
        for each in started:
            each.kill()
    return [(each.returncode, *output) for each, output in zip(started, outputs, strict=True)]


@pytest.mark.parametrize("row", ROWS)
def test_processes_join(row):
    variables, tasks, source = ROWS[row]
    found = outcomes(variables())

    assert [code for code, *_ in found] == [0] * len(tasks), found
    told = [json.loads(stdout) for _, stdout, _ in found]
    num_workers = sum(task.startswith("worker") for task in tasks)
    num_ps = sum(task.startswith("ps") for task in tasks)
    is_worker_too = "chief 0" in tasks and not num_ps
    sizes = [num_workers + is_worker_too, num_ps]
    assert [each[:3] for each in told] == [[task, *sizes] for task in tasks]
    assert told[0][3] == source


@pytest.mark.parametrize("row", REFUSED)
def test_what_does_not_join_says_why_in_one_line(row):
    variables, line = REFUSED[row]

    for code, stdout, stderr in outcomes(variables()):
        *_, last = stderr.strip().splitlines()
        is_error = line.startswith("ValueError")
        assert code == is_error
        said = last if is_error else next(each for each in stderr.splitlines() if "Warning" in each)
        assert re.search(line, said), stderr
        assert is_error or json.loads(stdout) == ALONE


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        ([(0, 3, 0), (1, 3, 0), (1, 3, 0)], ["both have rank 1"] * 3),
        ([(0, 2, 0), (0, 2, 0)], ["both have rank 0"] * 2),
        ([(0, 3, 0), (1, 3, 0), (2, 4, 0)], ["of rank 2, was told num_processes=4, and that"] * 3),
        ([(0, 3, 0), (1, 3, 0), (2, 3, 1)], ["of rank 2, was told num_ps=1, and that"] * 3),
        ([(0, 3, 0), (2, 3, 0)], [f"Only 2 of 3 .* within 3 s. {MISSING}"] * 2),
        ([(0, 2, 0), (2, 2, 0)], [MISSING, "from 0 to 1. Received: RANK=2, WORLD_SIZE=2"]),
        ([(1, 2, 0)], [f"{NOT_LET_IN} within 3 s.*nothing listens there"]),
    ],
)
def test_what_does_not_fit_is_one_line_on_every_process(told, lines):
    of_all = {"MASTER_ADDR": "node-0", "MASTER_PORT": port()}
    environs = [
        {**of_all, "RANK": str(rank), "WORLD_SIZE": str(size), "KERASDIST_NUM_PS": str(num_ps)}
        for rank, size, num_ps in told
    ]

    for (code, stdout, stderr), line in zip(outcomes(environs, timeout_secs=3), lines, strict=True):
        *_, last = stderr.splitlines()
        # As after the loss of a peer: schedulers start it again.
        is_for_want_of_peers = MISSING in line or NOT_LET_IN in line
        assert (code, stdout) == (138 if is_for_want_of_peers else 1, "")
        assert re.search(rf"Error: .*{line}", last), stderr


def test_each_row_of_the_table_is_tried():
    told = {name for variables, *_ in ROWS.values() for each in variables() for name in each}
    rows = (*launchers._WITHIN_STEPS, *launchers._OTHERS)

    assert {launcher.rank for launcher in rows} <= told
