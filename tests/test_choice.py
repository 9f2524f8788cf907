"""The choice of a strategy: the table of deployments, and what contradicts itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.config import DeploymentConfig
from kerasdist.strategies.choice import (
    choose,
    config_or_launched,
    has_number_of_clones,
    what_counts_for_task,
)
from tests.warned import warned_by

ONE_WORKER = {"worker": ["a:2222"]}
TWO_WORKERS = {"worker": ["a:2222", "b:2222"]}
WITH_CHIEF = {"chief": ["a:2222"], "worker": ["b:2222"]}
WITH_PS = {"chief": ["d:2222"], "worker": ["a:2222", "b:2222"], "ps": ["c:2222"]}


def cluster_of(jobs, job="worker", index=0):
    return Cluster(jobs=jobs, task=Task(job, index))


def choose_alone(num_gpus=0, **config):
    return choose(DeploymentConfig(**config), Cluster.local(), num_gpus=num_gpus)


@pytest.mark.parametrize(
    ("config", "num_gpus", "strategy", "devices"),
    [
        ({}, 0, "OneDeviceStrategy", ["CPU:0"]),
        ({}, 3, "OneDeviceStrategy", ["GPU:0"]),
        ({"clone_on_cpu": True}, 3, "OneDeviceStrategy", ["CPU:0"]),
        ({"num_clones": 2}, 2, "MirroredStrategy", ["GPU:0", "GPU:1"]),
        ({"num_clones": 2}, 3, "MirroredStrategy", ["GPU:0", "GPU:1"]),
        ({"num_clones": 2, "clone_on_cpu": True}, 0, "MirroredStrategy", ["CPU:0", "CPU:1"]),
        ({"num_clones": 2, "clone_on_cpu": True}, 3, "MirroredStrategy", ["CPU:0", "CPU:1"]),
        ({"num_replicas": 3}, 0, "MultiWorkerMirroredStrategy", ["CPU:0"]),
        (
            {"num_replicas": 2, "num_clones": 2},
            2,
            "MultiWorkerMirroredStrategy",
            ["GPU:0", "GPU:1"],
        ),
        ({"num_ps_tasks": 1}, 0, "ParameterServerStrategy", ["CPU:0"]),
        ({"num_replicas": 2, "num_ps_tasks": 1}, 3, "ParameterServerStrategy", ["GPU:0"]),
    ],
)
def test_config_decides_strategy_devices_and_tasks(config, num_gpus, strategy, devices):
    choice = choose_alone(num_gpus, **config)

    assert (choice.strategy, list(choice.devices)) == (strategy, devices)
    assert choice.num_workers == config.get("num_replicas", 1)
    assert choice.num_ps == config.get("num_ps_tasks", 0)
    assert choice.num_replicas == choice.num_workers * len(devices)


@pytest.mark.parametrize(
    ("config", "num_gpus", "reason"),
    [
        ({}, 0, "num_clones=1: one CPU, since TensorFlow sees no GPU"),
        ({}, 3, "num_clones=1: one GPU"),
        ({"clone_on_cpu": True}, 3, "num_clones=1: one CPU"),
        ({"num_clones": 2}, 3, "num_clones=2: 2 GPUs of one machine"),
        (
            {"num_clones": 2, "clone_on_cpu": True},
            3,
            "num_clones=2: 2 logical CPUs of one machine",
        ),
        ({"num_replicas": 3}, 0, "num_replicas=3 without ps tasks: synchronous workers"),
        ({"num_ps_tasks": 2}, 0, "num_ps_tasks=2: asynchronous workers"),
        (
            {"num_replicas": 3, "sync_replicas": True, "replicas_to_aggregate": 3},
            0,
            "num_replicas=3 without ps tasks: synchronous workers; sync_replicas=True changes "
            "nothing without ps tasks",
        ),
        (
            {"clone_on_cpu": True, "sync_replicas": True},
            0,
            "num_clones=1: one CPU; sync_replicas=True changes nothing without ps tasks",
        ),
    ],
)
def test_reason_names_the_setting_that_decided(config, num_gpus, reason):
    assert choose_alone(num_gpus, **config).reason == reason


@pytest.mark.parametrize(
    ("num_to_aggregate", "expected", "mean"),
    [
        (-1, 3, "mean of 3 gradients, one of each worker"),
        (3, 3, "mean of 3 gradients, one of each worker"),
        (2, 2, "mean of the first 2 of 3 gradients"),
        (1, 1, "first of 3 gradients"),
        (6, 6, "mean of 6 gradients of 3 workers"),
    ],
)
def test_synchronous_workers_over_parameter_servers(num_to_aggregate, expected, mean):
    choice = choose_alone(
        num_replicas=3, num_ps_tasks=1, sync_replicas=True, replicas_to_aggregate=num_to_aggregate
    )

    assert (choice.strategy, choice.num_to_aggregate) == ("ParameterServerStrategy", expected)
    assert choice.reason == f"num_ps_tasks=1: synchronous workers, each update the {mean}"


@pytest.mark.parametrize(
    "config", [{"num_ps_tasks": 1}, {"num_replicas": 2, "sync_replicas": True}]
)
def test_other_workers_aggregate_nothing_on_servers(config):
    assert choose_alone(**config).num_to_aggregate is None


@pytest.mark.parametrize(
    ("num_gpus", "strategy", "devices"),
    [
        (0, "OneDeviceStrategy", ["CPU:0"]),
        (1, "OneDeviceStrategy", ["GPU:0"]),
        (3, "MirroredStrategy", ["GPU:0", "GPU:1", "GPU:2"]),
    ],
)
def test_without_config_all_gpus_of_the_machine_train(num_gpus, strategy, devices):
    choice = choose(None, Cluster.local(), num_gpus=num_gpus)

    assert (choice.strategy, list(choice.devices)) == (strategy, devices)
    assert choice.reason.startswith("no DeploymentConfig given: ")


@pytest.mark.parametrize(
    ("jobs", "strategy", "num_workers", "num_ps"),
    [
        (ONE_WORKER, "MirroredStrategy", 1, 0),
        (TWO_WORKERS, "MultiWorkerMirroredStrategy", 2, 0),
        (WITH_CHIEF, "MultiWorkerMirroredStrategy", 2, 0),
        (WITH_PS, "ParameterServerStrategy", 2, 1),
    ],
)
def test_without_config_the_cluster_decides(jobs, strategy, num_workers, num_ps):
    choice = choose(None, cluster_of(jobs), num_gpus=3)

    assert (choice.strategy, choice.num_workers, choice.num_ps) == (strategy, num_workers, num_ps)
    assert choice.devices == ("GPU:0", "GPU:1", "GPU:2")


@pytest.mark.parametrize(
    ("config", "jobs"),
    [
        ({"num_replicas": 2}, TWO_WORKERS),
        ({"num_replicas": 2, "replica_id": 1}, TWO_WORKERS),
        ({"num_replicas": 2}, WITH_CHIEF),
        ({"num_replicas": 2, "num_ps_tasks": 1}, WITH_PS),
    ],
)
def test_config_may_repeat_what_the_cluster_says(config, jobs):
    cluster = cluster_of(jobs, index=len(jobs["worker"]) - 1)

    assert choose(DeploymentConfig(**config), cluster, num_gpus=0).num_workers == 2


@pytest.mark.parametrize(
    ("config", "jobs", "wanted", "found"),
    [
        ({}, TWO_WORKERS, "num_replicas=1, num_ps_tasks=0", "2 workers and 0 ps tasks"),
        ({}, WITH_CHIEF, "num_replicas=1, num_ps_tasks=0", "2 workers and 0 ps tasks"),
        ({"num_clones": 2}, WITH_PS, "num_replicas=1, num_ps_tasks=0", "2 workers and 1 ps tasks"),
        (
            {"num_replicas": 3},
            TWO_WORKERS,
            "num_replicas=3, num_ps_tasks=0",
            "2 workers and 0 ps tasks",
        ),
        (
            {"num_replicas": 2},
            WITH_PS,
            "num_replicas=2, num_ps_tasks=0",
            "2 workers and 1 ps tasks",
        ),
        (
            {"num_replicas": 2, "num_ps_tasks": 1},
            TWO_WORKERS,
            "num_replicas=2, num_ps_tasks=1",
            "2 workers and 0 ps tasks",
        ),
    ],
)
def test_contradiction_names_what_both_sides_say(config, jobs, wanted, found):
    with pytest.raises(ValueError, match=f"asks for {wanted}, but the cluster has {found}"):
        choose(DeploymentConfig(**config), cluster_of(jobs), num_gpus=3)


@pytest.mark.parametrize("config", [None, DeploymentConfig(num_replicas=2, num_ps_tasks=1)])
def test_parameter_servers_without_a_chief_say_how_to_get_one(config):
    jobs = {job: hosts for job, hosts in WITH_PS.items() if job != "chief"}

    with pytest.raises(ValueError, match=r'jobs worker, ps\. Add "chief".*--workers 2 --ps 1`'):
        choose(config, cluster_of(jobs), num_gpus=0)


def test_parameter_servers_and_several_clones_on_cpu_are_a_contradiction():
    with pytest.raises(ValueError, match=r"num_clones=2, clone_on_cpu=True.*Use num_clones=1"):
        choose_alone(num_clones=2, clone_on_cpu=True, num_ps_tasks=1)


@pytest.mark.parametrize("job", ["chief", "ps"])
def test_gpus_are_wanted_of_the_workers_alone(job):
    config = DeploymentConfig(num_replicas=2, num_clones=2, num_ps_tasks=1)

    choice = choose(config, cluster_of(WITH_PS, job), num_gpus=0)

    assert choice.devices == ("GPU:0", "GPU:1")
    with pytest.raises(ValueError, match="num_clones=2; GPUs that TensorFlow sees: none"):
        choose(config, cluster_of(WITH_PS), num_gpus=0)


def test_replica_id_of_another_task_is_a_contradiction():
    config = DeploymentConfig(num_replicas=2, replica_id=1)

    with pytest.raises(ValueError, match=r"replica_id=1, but the cluster says .* worker 0"):
        choose(config, cluster_of(TWO_WORKERS), num_gpus=0)


@pytest.mark.parametrize(
    ("num_gpus", "exists"), [(0, "none"), (1, "GPU:0"), (3, "GPU:0, GPU:1, GPU:2")]
)
def test_more_clones_than_gpus_lists_the_gpus(num_gpus, exists):
    with pytest.raises(ValueError, match=rf"num_clones=4; GPUs that TensorFlow sees: {exists}\."):
        choose_alone(num_gpus, num_clones=4)


@pytest.mark.parametrize(
    "config",
    [
        DeploymentConfig(num_replicas=2, worker_job_name="trainer"),
        DeploymentConfig(num_replicas=2, ps_job_name="trainer"),
    ],
    ids=["workers", "ps"],
)
@pytest.mark.parametrize("cluster", [Cluster.local(), cluster_of(TWO_WORKERS)], ids=["no", "two"])
def test_custom_job_name_in_a_cluster_is_an_error(config, cluster):
    with pytest.raises(ValueError, match=r"only know the jobs .*_job_name='trainer'"):
        choose(config, cluster, num_gpus=0)


def test_custom_job_name_is_ignored_where_the_process_is_alone():
    assert choose_alone(worker_job_name="trainer").strategy == "OneDeviceStrategy"


@pytest.mark.processes
def test_choice_is_made_without_tensorflow():
    program = """
import sys
from kerasdist.strategies.choice import Cluster, choose
choose(None, Cluster.local(), num_gpus=3)
print(*sys.modules)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()

    assert "kerasdist.strategies.choice" in loaded
    assert not {"tensorflow", "keras", "numpy"} & set(loaded)


def test_a_cluster_of_one_worker_contradicts_two_replicas():
    cluster = Cluster(jobs={"worker": ["a:1"]}, task=Task("worker", 0))

    with pytest.raises(ValueError, match=r"num_replicas=2.*has 1 workers"):
        choose(DeploymentConfig(num_replicas=2), cluster, num_gpus=0)


def test_the_chief_is_the_first_replica():
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    cluster = Cluster(jobs=jobs, task=Task("worker", 0))

    choice = choose(DeploymentConfig(num_replicas=3, replica_id=1), cluster, num_gpus=0)

    assert choice.num_workers == 3


@pytest.mark.parametrize(("num_clones", "is_told"), [(1, True), (3, False)])
def test_a_config_counts_more_than_the_clones_of_the_launch_which_is_told(num_clones, is_told):
    config, chosen = DeploymentConfig(num_clones=num_clones, clone_on_cpu=True), []
    environ = {"KERASDIST_NUM_CLONES": "3"}

    told = warned_by(
        lambda: chosen.append(
            config_or_launched(config, Cluster.local(), num_gpus=0, environ=environ)
        )
    )

    assert chosen == [config]
    expected = ["KERASDIST_NUM_CLONES=3, as `launch --clones` sets it, has no effect: Deploy"]
    assert [each[:75] for each in told] == (expected if is_told else [])


RANGE = {"KERASDIST_WORKERS": "1:4"}


def test_a_config_leaves_the_number_of_workers_to_a_launch_with_a_range():
    cluster = cluster_of({"worker": ["a:1", "b:1", "c:1"]}, "worker")
    config = DeploymentConfig(num_clones=2, clone_on_cpu=True)

    wanted = config_or_launched(config, cluster, num_gpus=0, environ=RANGE)

    assert choose(wanted, cluster, num_gpus=0).num_replicas == 6
    told = "Received: num_replicas=3.* KERASDIST_WORKERS=1:4. Leave num_replicas out"
    with pytest.raises(ValueError, match=told):
        config_or_launched(DeploymentConfig(num_replicas=3), cluster, num_gpus=0, environ=RANGE)
    alone = config_or_launched(
        config, cluster_of({"worker": ["a:1"]}, "worker"), num_gpus=0, environ=RANGE
    )
    assert alone == config


def launched_with(num_backup_workers, config=None, jobs=WITH_PS, job="chief"):
    environ = {"KERASDIST_NUM_CLONES": "1", "KERASDIST_NUM_BACKUP_WORKERS": num_backup_workers}
    return config_or_launched(config, cluster_of(jobs, job), num_gpus=0, environ=environ)


@pytest.mark.parametrize(("num_backup_workers", "number"), [("0", 2), ("1", 1)])
def test_the_launch_asks_for_synchronous_workers(num_backup_workers, number):
    config = launched_with(num_backup_workers)

    assert config == DeploymentConfig(
        num_replicas=2, num_ps_tasks=1, sync_replicas=True, replicas_to_aggregate=number
    )


def test_without_backup_workers_in_the_launch_the_cluster_decides():
    assert launched_with("") is None


@pytest.mark.parametrize("job", ["chief", "worker", "ps"])
def test_backup_workers_leave_the_number_of_clones_to_the_devices_of_each_task(job):
    environ = {"KERASDIST_NUM_BACKUP_WORKERS": "1"}

    assert launched_with("1", job=job) is not None
    assert not has_number_of_clones(None, environ=environ)
    assert has_number_of_clones(None, environ=environ | {"KERASDIST_NUM_CLONES": "2"})
    assert has_number_of_clones(DeploymentConfig(), environ=environ)


def test_an_evaluator_has_no_backup_workers():
    config, cluster = what_counts_for_task(None, cluster_of(WITH_PS, "evaluator"))
    environ = {"KERASDIST_NUM_BACKUP_WORKERS": "1"}

    assert config_or_launched(config, cluster, num_gpus=0, environ=environ) is None


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "sync_replicas=False"),
        ({"sync_replicas": True}, "sync_replicas=True, replicas_to_aggregate=2"),
        ({"sync_replicas": True, "replicas_to_aggregate": 1}, None),
    ],
)
def test_a_config_counts_more_than_the_backup_workers_of_the_launch_which_is_told(config, told):
    config, chosen = DeploymentConfig(num_replicas=2, num_ps_tasks=1, **config), []

    warnings = warned_by(lambda: chosen.append(launched_with("1", config)))

    assert chosen == [config]
    expected = (
        f"KERASDIST_NUM_BACKUP_WORKERS=1, as `launch --backup` sets it, has no effect: "
        f"DeploymentConfig asks for {told}. Make them agree, or give no DeploymentConfig."
    )
    assert warnings == ([expected] if told else [])


@pytest.mark.parametrize(
    ("value", "jobs", "message"),
    [
        ("two", WITH_PS, "must be a number. Received: KERASDIST_NUM_BACKUP_WORKERS='two'"),
        ("1", TWO_WORKERS, "need parameter servers.*WORKERS=1, in a cluster of 2 workers and 0 ps"),
        ("2", WITH_PS, "at least one worker besides.*WORKERS=2, in a cluster of 2 workers and 1"),
        ("-1", WITH_PS, "KERASDIST_NUM_BACKUP_WORKERS=-1"),
    ],
)
def test_backup_workers_that_cannot_be_had_are_an_error(value, jobs, message):
    with pytest.raises(ValueError, match=message):
        launched_with(value, jobs=jobs, job="worker")
