"""What launchers tell each process, as their sources and documents say."""

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.cluster.launchers import Membership, read_membership
from kerasdist.support import memory
from tests.test_slurm import STEP

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
AWS = {"AWS_BATCH_JOB_NUM_NODES": "3", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1"}
MAIN = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.7"}
PROCESSES = {"KERASDIST_NUM_PROCESSES": "2", "KERASDIST_ADDRESS": "a:7"}
ONE_WORKER = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]'}


def told(environ, **arguments) -> Membership:
    found = read_membership(environ, **arguments)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("environ", "launcher", "rank", "num_processes", "address"),
    [
        (TORCHRUN, "torchrun", 1, 2, "a:29500"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}, "torchrun", 1, 2, "a:29501"),
        ({**TORCHRUN, "MASTER_ADDR": "fd00::1"}, "torchrun", 1, 2, "[fd00::1]:29500"),
        ({**TORCHRUN, "KERASDIST_ADDRESS": "b:1"}, "torchrun", 1, 2, "b:1"),
        (
            {
                **{"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1"},
                **{"PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400"},
            },
            *("a TrainJob", 1, 2, "job-node-0-0.job:29400"),
        ),
        (
            {
                **{"JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "0"},
                "JAX_COORDINATOR_ADDRESS": "job-node-0-0.job:6666",
            },
            *("a TrainJob", 0, 4, "job-node-0-0.job:6666"),
        ),
        (
            {
                **{"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"},
                "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
            },
            *("SkyPilot", 1, 2, "10.0.0.1:11000"),
        ),
        (
            {
                **{"MF_PARALLEL_NUM_NODES": "2", "MF_PARALLEL_NODE_INDEX": "0"},
                "MF_PARALLEL_MAIN_IP": "10.0.0.1",
            },
            *("Metaflow", 0, 2, "10.0.0.1:11000"),
        ),
        ({**AWS, **MAIN, "AWS_BATCH_JOB_NODE_INDEX": "0"}, "AWS Batch", 1, 3, "10.0.0.7:11000"),
        ({**AWS, **MAIN, "AWS_BATCH_JOB_NODE_INDEX": "2"}, "AWS Batch", 2, 3, "10.0.0.7:11000"),
        ({**AWS, "AWS_BATCH_JOB_NODE_INDEX": "1"}, "AWS Batch", 0, 3, "0.0.0.0:11000"),
        ({**SAGEMAKER, "SM_CURRENT_HOST": "algo-2"}, "SageMaker", 1, 2, "algo-1:11000"),
        (
            {"KERASDIST_NUM_PROCESSES": "2", "KERASDIST_RANK": "0", "KERASDIST_ADDRESS": "a:7"},
            *("the environment", 0, 2, "a:7"),
        ),
        (
            {
                **{"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
                **{"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": "7"},
            },
            *("mpirun", 1, 2, "127.0.0.1:7"),
        ),
        (
            {"PMI_SIZE": "3", "PMI_RANK": "2", "MPI_LOCALNRANKS": "1", "MASTER_ADDR": "a"},
            *("mpirun", 2, 3, "a:11000"),
        ),
        ({**PROCESSES, "PMIX_RANK": "1"}, "PMIx", 1, 2, "a:7"),
        ({**PROCESSES, "PALS_RANKID": "0"}, "PALS", 0, 2, "a:7"),
        ({**PROCESSES, "JOB_COMPLETION_INDEX": "1"}, "Kubernetes", 1, 2, "a:7"),
        (
            {
                **{"KERASDIST_NUM_PROCESSES": "4", "JOB_COMPLETION_INDEX": "3"},
                **{"JOBSET_NAME": "my-run", "HOSTNAME": "my-run-node-0-3"},
            },
            *("Kubernetes", 3, 4, "my-run-node-0-0.my-run:11000"),
        ),
        (
            {
                **{"VC_TASK_INDEX": "1", "VC_WORKER_NUM": "2"},
                "VC_WORKER_HOSTS": "run-worker-0.run,run-worker-1.run",
            },
            *("Volcano", 1, 2, "run-worker-0.run:11000"),
        ),
    ],
)
def test_launchers_say_rank_size_and_address(environ, launcher, rank, num_processes, address):
    found = told(environ)

    assert (found.launcher, found.rank, found.num_processes) == (launcher, rank, num_processes)
    assert found.address == address


def test_two_jobs_on_a_machine_meet_at_two_ports():
    local = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    local["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2"
    first, second = (told({**local, "PMIX_NAMESPACE": name}).address for name in ("12@1", "13@1"))

    assert first.startswith("127.0.0.1:11") and first != second


def test_the_nodes_of_a_job_of_aws_batch_meet_at_one_port():
    def address(job, index):
        environ = {**AWS, **MAIN, "AWS_BATCH_JOB_NODE_INDEX": index, "AWS_BATCH_JOB_ID": job}
        return told(environ).address

    assert address("1a#0", "0") == address("1a#2", "2") != address("1b#2", "2")


@pytest.mark.parametrize(
    "alone",
    [
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"KERASDIST_NUM_PROCESSES": "1", "JOB_COMPLETION_INDEX": "3"},
    ],
)
@pytest.mark.parametrize(
    "around",
    [
        {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"},
        {"SLURM_NTASKS": "2"},
        STEP,
        {"JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_a_process_is_alone_if_the_inner_launcher_says_so(alone, around):
    assert Cluster.from_env({**around, **alone}) == Cluster.local()


def test_what_runs_within_a_step_of_srun_counts_and_what_is_around_it_does_not():
    skypilot = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}

    assert told({**skypilot, **TORCHRUN}, is_in_step=True).launcher == "torchrun"
    assert read_membership(skypilot, is_in_step=True) is None


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (
            {
                **{"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            },
            "mpirun",
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "torchrun"),
    ],
)
def test_a_launcher_that_says_no_address_is_told_the_way_out(environ, launcher):
    with pytest.raises(ValueError, match=rf"^{launcher}: it has started.*KERASDIST_ADDRESS.*local"):
        Cluster.from_env(environ)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({**TORCHRUN, "RANK": "2"}, r"from 0 to 1\. Received: RANK=2, WORLD_SIZE=2"),
        ({**TORCHRUN, "KERASDIST_NUM_PS": "1"}, "^torchrun: Parameter servers need a chief and"),
        ({**PROCESSES, "KERASDIST_RANK": "2"}, "from 0 to 1.*KERASDIST_RANK=2, KERASDIST_NUM"),
        (PROCESSES, "^KERASDIST_NUM_PROCESSES=2 says .* nothing which .* Set KERASDIST_RANK"),
        ({"KERASDIST_RANK": "1"}, "^KERASDIST_RANK=1 says .* Set KERASDIST_NUM_PROCESSES as well"),
        ({"KERASDIST_NUM_PROCESSES": "x"}, "must be a whole number.*KERASDIST_NUM_PROCESSES='x'"),
        (
            {**PROCESSES, "KERASDIST_RANK": "1", "KERASDIST_ADDRESS": "a"},
            "^the environment: The port is missing. Received: 'a' for the process of rank 0",
        ),
        (
            {
                **{"KERASDIST_NUM_PROCESSES": "4", "JOB_COMPLETION_INDEX": "0"},
                **{"JOBSET_NAME": "run", "HOSTNAME": "run-node-1-0"},
            },
            "run-node-1-0, is of another Job of its JobSet than the first. Set KERASDIST_RANK",
        ),
    ],
)
@pytest.mark.parametrize("meet", [True, False])
def test_what_cannot_be_is_an_error_at_once(environ, told, meet):
    with pytest.raises(ValueError, match=told):
        Cluster.from_env(environ, meet=meet)


@pytest.mark.parametrize(
    ("num_ps", "job", "index"), [("0", "worker", 3), ("1", "ps", 0), ("2", "ps", 1)]
)
def test_without_a_meeting_the_tasks_are_known_and_no_addresses(num_ps, job, index):
    environ = {**TORCHRUN, "RANK": "3", "WORLD_SIZE": "4", "KERASDIST_NUM_PS": num_ps}

    cluster = Cluster.from_env(environ, meet=False)

    assert cluster.task == Task(job, index)
    assert cluster.num_workers == {"0": 4, "1": 2, "2": 1}[num_ps]
    assert cluster.addresses[cluster.task] == "rank-3.invalid:1"
    assert cluster.source == "torchrun (RANK=3, WORLD_SIZE=4)"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "this process is alone, with 0 parameter servers"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a"}, "this process is alone, with 0"),
        (
            {"TF_CONFIG": ONE_WORKER},
            "TF_CONFIG says 0 parameter servers",
        ),
    ],
)
def test_a_number_of_parameter_servers_without_effect_is_told(environ, told, monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "said", set())

    with pytest.warns(UserWarning, match=f"^KERASDIST_NUM_PS=1 has no effect: {told}"):
        Cluster.from_env({**environ, "KERASDIST_NUM_PS": "1"})


@pytest.mark.filterwarnings('ignore:TF_CONFIG has the job "master"')
def test_the_parameter_servers_of_sagemaker_cannot_work():
    text = """{"cluster": {"master": ["algo-1:2222"], "worker": ["algo-2:2222"],
        "ps": ["algo-1:2223", "algo-2:2223"]}, "task": {"type": "master", "index": 0}}"""
    with pytest.raises(ValueError, match="parameter_server distribution cannot work"):
        Cluster.from_env({"TF_CONFIG": text, "SM_CURRENT_HOST": "algo-1"})


def test_the_parameter_servers_of_azure_have_no_chief():
    text = """{"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]},
        "task": {"type": "worker", "index": 0}}"""
    with pytest.raises(ValueError, match=r"starts no chief.*worker, ps.*parameter_server_count"):
        Cluster.from_env({"TF_CONFIG": text, "AZUREML_RUN_ID": "x"})
