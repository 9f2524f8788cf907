"""The flags of clones, replicas and hosts: the cluster and the strategy that they give."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from absl import flags

import kerasdist
from models import deployment, input_pipeline
from models.usage_error import UsageError

TWO_WORKERS = {"worker": ["a:1", "b:1"]}
WITH_SERVERS = {"chief": ["d:1"], "worker": ["a:1", "b:1", "e:1"], "ps": ["c:1"]}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("KERASDIST_NUM_BACKUP_WORKERS", raising=False)


def parse(*argv):
    values = flags.FlagValues()
    deployment.define_flags(values)
    input_pipeline.define_flags(values, split="train", batch_size=32)
    values(["", *argv])
    return values


def set_tf_config(monkeypatch):
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO_WORKERS, "task": task}))


def two_workers():
    return kerasdist.Cluster(jobs=TWO_WORKERS, task=kerasdist.Task("worker", 1))


def test_without_flags_tf_config_decides(monkeypatch):
    set_tf_config(monkeypatch)

    assert deployment.cluster(parse()) == two_workers()


def test_hosts_and_a_task_make_a_cluster():
    cluster = deployment.cluster(
        parse("--worker_hosts=a:1,b:1", "--ps_hosts=c:1", "--job_name=ps", "--task_id=0")
    )

    assert cluster.jobs == {
        **{job: tuple(hosts) for job, hosts in TWO_WORKERS.items()},
        "ps": ("c:1",),
    }
    assert cluster.task == kerasdist.Task("ps", 0)


def test_hosts_may_name_a_chief_beside_the_workers():
    cluster = deployment.cluster(
        parse("--worker_hosts=a:1", "--ps_hosts=c:1", "--chief_host=d:1", "--job_name=chief")
    )

    assert cluster.jobs["chief"] == ("d:1",)
    assert cluster.task == cluster.chief == kerasdist.Task("chief", 0)


def test_parameter_servers_without_a_chief_are_a_mistake():
    cluster = deployment.cluster(parse("--worker_hosts=a:1,b:1", "--ps_hosts=c:1"))

    with pytest.raises(UsageError, match=r"or --chief_host=host:port to --w.*--workers 2 --ps 1`"):
        deployment.make_strategy(parse(), cluster)


def test_empty_hosts_are_the_legacy_way_to_be_alone():
    assert deployment.cluster(parse("--worker_hosts=", "--task_id=0")).is_local


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--worker_hosts=a:1,b"], "^--worker_hosts=a:1,b: The port is missing"),
        (["--worker_hosts=a:1,b:1", "--task_id=2"], "--task_id=2: --task_id must be at least 0"),
        (["--ps_hosts=a:1"], "--ps_hosts=a:1 needs --worker_hosts"),
        (["--chief_host=a:1"], "--chief_host=a:1 needs --worker_hosts"),
    ],
)
def test_hosts_that_cannot_work_are_mistakes(argv, message):
    with pytest.raises(UsageError, match=message):
        deployment.cluster(parse(*argv))


def test_hosts_and_tf_config_contradict_each_other(monkeypatch):
    set_tf_config(monkeypatch)

    with pytest.raises(UsageError, match=r"--worker_hosts=a:1,b:1 and TF_CONFIG .* unset"):
        deployment.cluster(parse("--worker_hosts=a:1,b:1"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--worker_replicas=3"],
            "The flags ask for --worker_replicas=3, .* the cluster has 2 workers",
        ),
        (["--worker_replicas=2", "--num_ps_tasks=1"], "--num_ps_tasks=1, .*0 ps tasks"),
        (["--task=0", "--worker_replicas=1"], "--worker_replicas=1, .*the cluster has 2 workers"),
    ],
)
def test_flags_that_contradict_the_cluster_name_both(argv, message):
    with pytest.raises(UsageError, match=message):
        deployment.make_strategy(parse(*argv), two_workers())


def test_clones_of_flags_and_of_the_launch_must_agree(monkeypatch):
    monkeypatch.setenv("KERASDIST_NUM_CLONES", "2")

    with pytest.raises(UsageError, match=r"--num_clones=1 .*--clones 2.*Give --num_clones=2"):
        deployment.make_strategy(parse("--worker_replicas=2"), two_workers())


def test_flags_of_clones_leave_the_number_of_workers_to_the_cluster(monkeypatch):
    seen = []
    monkeypatch.setattr(kerasdist, "make_strategy", lambda config, cluster: seen.append(config))

    deployment.make_strategy(parse("--num_clones=2", "--clone_on_cpu"), two_workers())

    assert seen == [kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True, num_replicas=2)]


def config_of_three(**fields):
    return kerasdist.DeploymentConfig(num_replicas=3, num_ps_tasks=1, **fields)


def with_servers():
    return kerasdist.Cluster(jobs=WITH_SERVERS, task=kerasdist.Task("chief", 0))


@pytest.mark.parametrize(
    ("argv", "is_sync", "number", "num_to_aggregate"),
    [
        (["--num_clones=1"], False, -1, 1),
        (["--sync_replicas"], True, -1, 3),
        (["--sync_replicas", "--replicas_to_aggregate=2"], True, 2, 2),
        (["--num_replicas_to_aggregate=2"], True, 2, 2),
        (["--num_replicas_to_aggregate=-1"], True, -1, 3),
        (["--sync_replicas", "--num_replicas_to_aggregate=6"], True, 6, 6),
    ],
)
def test_flags_of_synchronous_workers_over_parameter_servers(
    argv, is_sync, number, num_to_aggregate, monkeypatch
):
    seen = []
    monkeypatch.setattr(kerasdist, "make_strategy", lambda config, cluster: seen.append(config))

    deployment.make_strategy(parse(*argv), with_servers())

    assert seen == [config_of_three(sync_replicas=is_sync, replicas_to_aggregate=number)]
    assert deployment.num_to_aggregate(parse(*argv), with_servers()) == num_to_aggregate
    assert deployment.has_synchronous_servers(parse(*argv), with_servers()) == is_sync


def test_gradients_of_asynchronous_workers_are_not_counted():
    message = "=2, --sync_replicas=False. Give --sync_replicas, too"

    with pytest.raises(UsageError, match=message):
        deployment.make_strategy(parse("--replicas_to_aggregate=2"), with_servers())


@pytest.mark.parametrize(
    "argv",
    [[], ["--sync_replicas"], ["--replicas_to_aggregate=2"], ["--num_replicas_to_aggregate=-1"]],
)
def test_workers_without_parameter_servers_make_each_step_together(argv, monkeypatch):
    monkeypatch.setattr(kerasdist, "make_strategy", lambda config, cluster: None)

    deployment.make_strategy(parse(*argv), two_workers())

    assert deployment.num_to_aggregate(parse(*argv), two_workers()) == 2
    assert not deployment.has_synchronous_servers(parse(*argv), two_workers())
    assert deployment.num_to_aggregate(parse(*argv), kerasdist.Cluster.local()) == 1


@pytest.mark.parametrize(
    ("num_replicas", "num_workers", "expected"),
    [(1, 1, 3), (4, 1, 12), (4, 2, 6), (1, 2, 3)],  # The last one beside parameter servers.
)
def test_each_clone_of_a_process_has_threads_of_its_own(num_replicas, num_workers, expected):
    strategy: Any = SimpleNamespace(num_replicas_in_sync=num_replicas)
    cluster: Any = SimpleNamespace(num_workers=num_workers)
    values = parse("--num_preprocessing_threads=3")

    assert deployment.num_preprocessing_threads(values, cluster, strategy) == expected


@pytest.mark.parametrize(
    "argv", [[], ["--num_clones=1"], ["--sync_replicas", "--replicas_to_aggregate=2"]]
)
def test_backup_workers_may_come_from_the_launch(argv, monkeypatch):
    seen = []
    monkeypatch.setattr(kerasdist, "make_strategy", lambda config, cluster: seen.append(config))
    monkeypatch.setenv("KERASDIST_NUM_BACKUP_WORKERS", "1")

    deployment.make_strategy(parse(*argv), with_servers())

    config = config_of_three(sync_replicas=True, replicas_to_aggregate=2)
    assert seen == ([config] if argv else [None])
    assert deployment.num_to_aggregate(parse(*argv), with_servers()) == 2


def test_backup_workers_of_flags_and_of_the_launch_must_agree(monkeypatch):
    monkeypatch.setenv("KERASDIST_NUM_BACKUP_WORKERS", "1")

    with pytest.raises(UsageError, match=r"^--sync_replicas=True contradicts --backup .*gate=2\."):
        deployment.make_strategy(parse("--sync_replicas"), with_servers())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--sync_replicas", "--replicas_to_aggregate=0"], "`?--replicas_to_aggregate`? must be"),
        (["--replicas_to_aggregate=3"], "need parameter servers.*Received: --replicas_to_agg"),
        (
            ["--num_replicas_to_aggregate=1"],
            "need parameter servers.*Received: --num_replicas_to_aggregate=1, --worker_replicas=2, "
            "--num_ps_tasks=0. Use --num_ps_tasks=1",
        ),
        (
            ["--num_replicas_to_aggregate=2", "--replicas_to_aggregate=1"],
            "^--replicas_to_aggregate=1 and --num_replicas_to_aggregate=2 are two names of one",
        ),
    ],
)
def test_synchronous_workers_that_cannot_be_had_are_mistakes(argv, message):
    with pytest.raises(UsageError, match=message):
        deployment.make_strategy(parse(*argv), two_workers())


def test_several_workers_without_a_cluster_are_told_the_command():
    with pytest.raises(UsageError, match=r"worker_replicas=2 .* launch --workers 2 --"):
        deployment.make_strategy(parse("--worker_replicas=2"), kerasdist.Cluster.local())


def test_parameter_servers_without_a_cluster_are_told_the_command():
    with pytest.raises(UsageError, match=r"num_ps_tasks=2 .* launch --workers 3 --ps 2 --` before"):
        deployment.make_strategy(
            parse("--worker_replicas=3", "--num_ps_tasks=2"), kerasdist.Cluster.local()
        )


def test_a_cluster_that_does_not_start_is_no_mistake_of_the_flags(monkeypatch):
    def fail(*args, **kwargs):
        raise kerasdist.ClusterStartError("worker 0 never answered")

    monkeypatch.setattr(kerasdist, "make_strategy", fail)

    with pytest.raises(kerasdist.ClusterStartError):
        deployment.make_strategy(parse(), two_workers())
