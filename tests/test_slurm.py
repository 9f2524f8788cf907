"""Slurm: what the variables of an `srun` step mean."""

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.cluster.slurm import expand_counts, expand_hosts, read_step

STEP = {
    "SLURM_JOB_ID": "1234",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[9-10],m",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}
# 12000 + 32 * (1234 % 640)
PORT = 31008


def test_srun_gives_workers_on_the_nodes_of_the_step():
    cluster = Cluster.from_env(STEP)

    hosts = [f"n9:{PORT}", f"n9:{PORT + 1}", f"n10:{PORT}", f"n10:{PORT + 1}", f"m:{PORT}"]
    assert cluster.jobs == {"worker": tuple(hosts)}
    assert cluster.task == Task("worker", 2)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},  # sbatch without srun.
        {"SLURM_STEP_NUM_TASKS": "1"},
        STEP | {"TF_CONFIG": "{}"},
    ],
)
def test_outside_of_srun_and_as_its_only_task_a_process_is_alone(environ):
    assert Cluster.from_env(environ) == Cluster.local()


def test_the_last_tasks_are_parameter_servers_where_some_are_asked_for():
    cluster = Cluster.from_env(STEP | {"KERASDIST_NUM_PS": "2"})

    assert cluster.task == Task("worker", 1)
    assert cluster.jobs["chief"] == (f"n9:{PORT}",)
    assert cluster.jobs["ps"] == (f"n10:{PORT + 1}", f"m:{PORT}")


def test_tf_config_goes_before_slurm():
    tf_config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'

    cluster = Cluster.from_env(STEP | {"TF_CONFIG": tf_config})

    assert cluster.jobs == {"worker": ("a:1", "b:1")}


@pytest.mark.parametrize("job_id", ["1", "639", "640", "4294967295"])
def test_jobs_of_neighbouring_ids_share_no_port(job_id):
    steps = [
        read_step(STEP | {"SLURM_JOB_ID": str(int(job_id) + after), "SLURM_PROCID": "0"})
        for after in (0, 1, 2)
    ]

    addresses = [address for step in steps if step for address in step.addresses]
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    assert all(1024 < port < 32768 for port in ports)
    assert len(ports) == 3 * 2  # Two tasks on a node at most.


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b.c-d", ["a", "b.c-d"]),
        ("n[1-2],m5,o[3-4,6,7-9]", ["n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[001,3]", ["n001", "n3"]),
        ("n[1-2]-ib,r[0-1]n[1-2]", ["n1-ib", "n2-ib", "r0n1", "r0n2", "r1n1", "r1n2"]),
    ],
)
def test_hosts_are_expanded_in_their_order(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", "a,", ",a", "n[1-2", "n1]", "n[]", "n[a]", "n[1-2-3]", "a b"])
def test_other_text_is_no_list_of_hosts(text):
    with pytest.raises(ValueError, match="SLURM_STEP_NODELIST="):
        expand_hosts(text)


@pytest.mark.parametrize(
    ("text", "counts"), [("1", [1]), ("3(x2),2,1", [3, 3, 2, 1]), ("12(x1)", [12])]
)
def test_counts_are_expanded(text, counts):
    assert expand_counts(text) == counts


@pytest.mark.parametrize(
    "wrong",
    [
        {"SLURM_STEP_NODELIST": "n[0-999999999999]"},
        {"SLURM_STEP_NODELIST": "n[0-99999][0-99999]"},
        {"SLURM_STEP_TASKS_PER_NODE": "2(x999999999999)"},
        {"SLURM_STEP_NUM_TASKS": "999999999999"},
        {"SLURM_STEP_NUM_TASKS": "9" * 5000},
    ],
)
def test_numbers_that_no_job_has_are_named_and_not_listed(wrong):
    with pytest.raises(ValueError, match=r"contradict|at most 100000 processes|whole number"):
        read_step(STEP | wrong)


@pytest.mark.parametrize("text", ["", "2,", "x2", "2(x)", "2(2)", "-1"])
def test_other_text_is_no_list_of_counts(text):
    with pytest.raises(ValueError, match="SLURM_STEP_TASKS_PER_NODE="):
        expand_counts(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_PROCID": None}, "SLURM_PROCID is not set.*TF_CONFIG={}"),
        ({"SLURM_JOB_ID": None}, "SLURM_JOB_ID is not set"),
        ({"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST is not set"),
        ({"SLURM_STEP_TASKS_PER_NODE": None}, "SLURM_STEP_TASKS_PER_NODE is not set"),
        ({"SLURM_PROCID": "x"}, "whole number. Received: SLURM_PROCID='x'"),
        ({"SLURM_STEP_NUM_TASKS": "two"}, "Received: SLURM_STEP_NUM_TASKS='two'"),
        ({"SLURM_PROCID": "5"}, "less than SLURM_STEP_NUM_TASKS=5. Received: SLURM_PROCID=5"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, r"contradict.*5 tasks\), SLURM_STEP_NUM_TASKS=4"),
        ({"SLURM_STEP_NODELIST": "n[9-10]"}, r"contradict.*\(2 nodes\)"),
        ({"SLURMD_NODENAME": "n9"}, "should run on n10.*--distribution=block"),
    ],
)
def test_variables_that_contradict_each_other_are_an_error(change, message):
    environ = {name: value for name, value in (STEP | change).items() if value is not None}

    with pytest.raises(ValueError, match="Slurm: .*" + message):
        Cluster.from_env(environ)


def test_name_of_the_node_may_be_given():
    assert Cluster.from_env(STEP | {"SLURMD_NODENAME": "n10"}).num_workers == 5
