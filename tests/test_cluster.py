"""Cluster: what TF_CONFIG means, and a message for every mistake in it."""

import functools
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.messages.address import split_address

TWO_WORKERS = {"worker": ["a:2222", "b:2222"]}
WORKER_0 = {"type": "worker", "index": 0}


def from_tf_config(config):
    text = config if isinstance(config, str) else json.dumps(config)
    return Cluster.from_env({"TF_CONFIG": text})


def from_cluster(cluster, job="worker", index=0):
    return from_tf_config({"cluster": cluster, "task": {"type": job, "index": index}})


def test_tf_config_gives_jobs_and_task():
    cluster = from_cluster(TWO_WORKERS, index=1)

    assert cluster.jobs == {"worker": ("a:2222", "b:2222")}
    assert cluster.task == Task("worker", 1)
    assert not cluster.is_local


def test_task_reads_as_words():
    assert str(Task("worker", 1)) == "worker 1"


def test_address_is_a_host_without_brackets_and_a_port():
    assert split_address("host:02222") == ("host", 2222)
    assert split_address("[::1]:2222") == ("::1", 2222)


def test_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO_WORKERS, "task": WORKER_0}))

    assert Cluster.from_env().num_workers == 2


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": " \n"},
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": '{"cluster": {}, "task": {}}'},
        {"TF_CONFIG": '{"environment": "cloud"}'},
        {"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'},
        {"TF_CONFIG": '{"task": {"type": "chief", "index": 0}}'},
    ],
)
def test_without_a_cluster_the_process_is_alone(environ):
    assert Cluster.from_env(environ) == Cluster.local()


def test_local_cluster_is_one_worker_that_is_chief():
    cluster = Cluster.local()

    assert cluster.task == Task("worker", 0)
    assert cluster.is_local
    assert cluster.is_chief
    assert (cluster.num_workers, cluster.num_ps) == (1, 0)


@pytest.mark.parametrize(
    ("jobs", "num_workers", "num_ps"),
    [
        ({"worker": ["a:1", "b:1"]}, 2, 0),
        ({"chief": ["a:1"], "worker": ["b:1"]}, 2, 0),
        ({"chief": ["a:1"]}, 1, 0),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, 2, 1),
        ({"worker": ["b:1"], "ps": ["c:1", "d:1"]}, 1, 2),
    ],
)
def test_chief_counts_as_a_worker_unless_it_coordinates(jobs, num_workers, num_ps):
    cluster = from_cluster(jobs, job=next(iter(jobs)))

    assert (cluster.num_workers, cluster.num_ps) == (num_workers, num_ps)


@pytest.mark.parametrize(
    ("jobs", "chief"),
    [
        ({"worker": ["a:1", "b:1"]}, Task("worker", 0)),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, Task("chief", 0)),
        ({"worker": ["a:1", "b:1"], "ps": ["c:1"]}, Task("worker", 0)),
    ],
)
def test_exactly_one_task_is_chief(jobs, chief):
    tasks = [Task(job, index) for job in jobs for index in range(len(jobs[job]))]
    tasks.append(Task("evaluator", 0))

    assert [task for task in tasks if Cluster(jobs=jobs, task=task).is_chief] == [chief]


@pytest.mark.parametrize(
    ("jobs", "indices"),
    [
        ({"worker": ["a:1", "b:1"]}, [0, 1]),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, [0, 1, 2]),
        ({"worker": ["b:1", "c:1"], "chief": ["a:1"], "ps": ["d:1"]}, [0, 1]),
    ],
)
def test_workers_are_counted_from_the_chief_where_it_is_one_of_them(jobs, indices):
    tasks = list(Cluster(jobs=jobs, task=Task("worker", 0)).addresses)[: len(indices)]

    assert [Cluster(jobs=jobs, task=task).worker_index for task in tasks] == indices


def test_a_task_is_described_with_its_address():
    cluster = from_cluster(TWO_WORKERS)

    assert cluster.describe(Task("worker", 1)) == "worker 1 (b:2222)"
    assert cluster.describe(Task("evaluator", 0)) == "evaluator 0 (not in the cluster)"


def test_cluster_of_one_is_local():
    assert from_cluster({"chief": ["a:2222"]}, job="chief").is_local


def test_evaluator_is_a_task_beside_the_cluster():
    cluster = from_cluster({"worker": ["a:2222"]}, job="evaluator")

    assert cluster.task == Task("evaluator", 0)
    assert not cluster.is_chief
    assert not cluster.is_local


def test_index_may_be_text():
    assert from_cluster(TWO_WORKERS, index="1").task == Task("worker", 1)


def test_keys_of_cloud_launchers_are_ignored():
    task = WORKER_0 | {"trial": "1", "cloud": "x"}
    extra = {"environment": "cloud", "job": {}, "rpc_layer": "grpc", "cluster_name": "x"}

    assert from_tf_config({"cluster": TWO_WORKERS, "task": task, **extra}).num_workers == 2


@pytest.mark.parametrize("address", ["localhost:1", "10.0.0.1:65535", "[::1]:2222", "a-0.a.svc:80"])
def test_addresses_are_host_and_port(address):
    assert from_cluster({"worker": [address]}).jobs["worker"] == (address,)


@pytest.mark.parametrize("job", [["worker"], {}, 1])
def test_a_job_that_is_no_text_is_an_error_in_the_variable_of_vertex_ai_too(job):
    spec = {"cluster": {"workerpool0": ["a:1"]}, "task": {"type": job, "index": 0}}

    with pytest.raises(ValueError, match='CLUSTER_SPEC: "type" of the task must be text'):
        Cluster.from_env({"CLUSTER_SPEC": json.dumps(spec)})


@pytest.mark.parametrize(
    ("number", "message"),
    [("9" * 12, "at most 100000 processes. Received: 9{12} "), ("9" * 5000, "a whole number")],
)
def test_more_processes_than_there_can_be_are_named_and_not_listed(number, message):
    told = {"KERASDIST_RANK": "1", "KERASDIST_ADDRESS": "a:1", "KERASDIST_NUM_PROCESSES": number}

    with pytest.raises(ValueError, match=message):
        Cluster.from_env(told, meet=False)


def test_jobs_cannot_be_changed():
    given = {"worker": ["a:2222"]}
    cluster = Cluster(jobs=given, task=Task("worker", 0))
    given["worker"].append("b:2222")

    assert cluster.num_workers == 1
    with pytest.raises(TypeError):
        cluster.jobs["worker"] = ()  # ty: ignore[invalid-assignment]


def test_cluster_travels_to_other_processes_and_into_sets():
    cluster = from_cluster(TWO_WORKERS)

    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert len({cluster, from_cluster(TWO_WORKERS)}) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'cluster': {}}", r"line 1 column 2: .* near there: .*'cluster'.*single quotes.*json\.d"),
        ('{"cluster": {},\n "task" {}}', r"line 2 column 9: .* near there: .*task.*json\.dumps"),
        ("{cluster: {}}", r"line 1 column 2: .*Received near there: '{cluster"),
        ("worker", r"Not valid JSON at line 1 column 1"),
        ('["a:2222"]', r'JSON object with "cluster" and "task". Received: \[\'a:2222\'\]'),
        ("null", "Received: None"),
        ("9" * 5000, r"or digits of a number\. Received: '9{20}'\.\.\. of 5,000 characters"),
        ("[" * 100_000, r"Too many brackets .* Received: '\[{20}'\.\.\. of 100,000 characters"),
    ],
)
def test_text_that_is_no_json_object_is_an_error_with_its_place(text, message):
    with pytest.raises(ValueError, match="TF_CONFIG: .*" + message):
        from_tf_config(text)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("clusters", "cluster"),
        ("CLUSTER", "cluster"),
        ("cluster_spec", "cluster"),
        ("tasks", "task"),
        ("task_type", "task"),
    ],
)
def test_key_that_looks_like_a_missing_one_is_an_error(key, meant):
    config = {"cluster": TWO_WORKERS, "task": WORKER_0}
    config[key] = config.pop(meant)

    with pytest.raises(ValueError, match=f'Unknown key "{key}". Did you mean "{meant}"?'):
        from_tf_config(config)


def test_a_configuration_inside_of_another_object_is_an_error():
    inside = {"cluster": TWO_WORKERS, "task": WORKER_0}

    with pytest.raises(ValueError, match=r'The object with "cluster" is inside of "TF_CONFIG"'):
        from_tf_config({"TF_CONFIG": inside})


def test_a_cluster_that_is_only_a_part_is_named_as_not_supported():
    with pytest.raises(ValueError, match=r'"sparseCluster", .* is not supported. Give every task'):
        from_tf_config({"sparseCluster": {"worker": {"1": "b:1"}}, "task": WORKER_0})


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({}, r'needs a "task".*Add "task": {"type": "worker", "index": 0}'),
        (["worker", 0], r"\"task\" must be a JSON object. Received: task=\['worker', 0\]"),
        ({"index": 0}, r"has no \"type\".*task={'index': 0}"),
        ({"type": "worker"}, r"has no \"index\".*task={'type': 'worker'}"),
        ({"type": 1, "index": 0}, "must be text. Received: type=1"),
        ({"type": "worker", "index": "one"}, "whole number. Received: index='one'"),
        ({"type": "worker", "index": True}, "whole number. Received: index=True"),
        ({"type": "worker", "index": 0.5}, r"whole number. Received: index=0\.5"),
        ({"type": "worker", "index": None}, "whole number. Received: index=None"),
        ({"type": "worker", "index": 2}, 'less than 2, the number of "worker" tasks.*index=2'),
        ({"type": "worker", "index": -1}, "at least 0 .* Received: index=-1"),
        ({"type": "evaluator", "index": 1}, 'less than 1, the number of "evaluator".*index=1'),
        ({"type": "wroker", "index": 0}, 'Jobs: worker, evaluator. Did you mean "worker"?'),
        ({"type": "ps", "index": 0}, '"ps 0" is not in the cluster. Jobs: worker, evaluator'),
        ({"type": "master", "index": 0}, 'no job "master". Use "chief"'),
        ({"type": "workerpool1", "index": 0}, '"workerpool1" is "worker" and'),
    ],
)
def test_wrong_task_is_an_error_that_shows_it(task, message):
    with pytest.raises(ValueError, match="TF_CONFIG: .*" + message):
        from_tf_config({"cluster": TWO_WORKERS, "task": task})


@pytest.mark.parametrize(("job", "index"), [("worker", 1), ("ps", 0), ("evaluator", 0)])
def test_task_that_lost_its_cluster_is_an_error(job, index):
    with pytest.raises(ValueError, match=f'{job} {index} needs the "cluster" it belongs to'):
        from_tf_config({"task": {"type": job, "index": index}})


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (["a:2222"], r"\"cluster\" must be a JSON object. Received: cluster=\['a:2222'\]"),
        (None, "Received: cluster=None"),
        ({"ps_hosts": ["a:1"]}, 'Unknown job "ps_hosts".*chief, worker, ps. Did you mean "ps"?'),
        ({"workers": ["a:1"]}, 'Unknown job "workers".*chief, worker, ps. Did you mean "worker"?'),
        ({"master": ["a:1"], "chief": ["b:1"]}, 'no job "master". Use "chief"'),
        ({"Master": ["a:1"], "worker": ["b:1"]}, 'no job "Master". Use "chief"'),
        ({"workerpool0": ["a:1"]}, 'Unknown job "workerpool0".* "workerpool0" is "chief", '),
        ({"worker": []}, r'"worker" has no addresses. Received: worker=\[\]'),
        ({"worker": "a:1"}, "must be a list.* Received: worker='a:1'"),
        ({"worker": {"0": "a:1"}}, "must be a list.* Received: worker={'0': 'a:1'}"),
        ({"chief": ["a:1", "b:1"]}, r"one chief. Received: chief=\['a:1', 'b:1'\]"),
        ({"worker": ["a:1", "b:1", "a:1"]}, "'a:1' for both worker 0 and worker 2"),
        ({"chief": ["a:1"], "worker": ["a:1"]}, "'a:1' for both chief 0 and worker 0"),
        ({"worker": ["a:1", "A:01"]}, "'A:01' for both worker 0 and worker 1"),
        ({"ps": ["a:1"]}, 'no task that trains. Received: jobs ps. Add "worker"'),
        ({"chief": ["a:1"], "ps": ["b:1"]}, "no task that trains. Received: jobs chief, ps"),
    ],
)
def test_wrong_cluster_is_an_error_that_shows_it(cluster, message):
    with pytest.raises(ValueError, match="TF_CONFIG: .*" + message):
        from_cluster(cluster)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (2222, 'must be text like "host:2222". Received: 2222 for worker 1'),
        ("b", "port is missing. Received: 'b' for worker 1. Write \"b:2222\""),
        ("http://b:1", "without a scheme. Received: 'http://b:1' .* Remove \"http://\""),
        ("b:0", "port must be a number from 1 to 65535. Received: 'b:0'"),
        ("b:65536", "port must be a number .* Received: 'b:65536'"),
        ("b:-1", "port must be a number .* Received: 'b:-1'"),
        ("b:", "port must be a number .* Received: 'b:'"),
        ("b:http", "port must be a number .* Received: 'b:http'"),
        ("", "needs a host name or IP.* Received: ''"),
        (":2222", "needs a host name or IP.* Received: ':2222'"),
        (" b:1", "needs a host name or IP.* Received: ' b:1'"),
        ("b,c:1", r"An address is that of one task. Received: 'b,c:1' .* Separate them"),
        ("b/c:1", r"A host name has letters.* Received: 'b/c:1'"),
        ("me@b:1", r"A host name has letters.* Received: 'me@b:1'"),
        ("::1:2222", r"IPv6 address needs brackets.* Received: '::1:2222'"),
    ],
)
def test_wrong_address_is_an_error_that_names_its_task(address, message):
    with pytest.raises(ValueError, match="TF_CONFIG: .*" + message):
        from_cluster({"worker": ["a:2222", address]})


def test_cluster_made_by_hand_is_checked_too():
    with pytest.raises(ValueError, match="Received: index=1"):
        Cluster(jobs={"worker": ["a:2222"]}, task=Task("worker", 1))
    with pytest.raises(ValueError, match=r'Take it out of "cluster".*own process keeps'):
        Cluster(jobs={"worker": ["a:1"], "evaluator": ["b:1"]}, task=Task("worker", 0))


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (Task, ("worker", "1"), "`index` must be an int. Received: index='1'."),
        (Task, ("worker", 0.0), "`index` must be an int. Received: index=0.0."),
        (Task, (None, 0), "`job` must be a str. Received: job=None."),
        (Cluster, {"jobs": ["a:1"]}, "Received: jobs=['a:1']. Form: {"),
        (Cluster, {"jobs": {1: ["a:1"]}}, "`job` must be a str. Received: job=1."),
        (Cluster, {"task": ("worker", 0)}, "Received: task=('worker', 0). Form: "),
        (Cluster.from_hosts, {"worker_hosts": "", "job_name": None}, "Received: job_name=None."),
    ],
)
def test_what_is_of_another_type_is_an_error_that_shows_it(make, arguments, message):
    right = {"jobs": {}, "task": Task("worker", 0)} if make is Cluster else {}

    with pytest.raises(TypeError, match=re.escape(message)):
        make(*arguments) if make is Task else make(**(right | arguments))


@pytest.mark.parametrize("job", ["master", "worker", "evaluator"])
def test_what_platforms_set_for_tensorflow_1_is_read_as_tensorflow_2_has_it(job):
    cluster = {"master": ["a:1"], "worker": ["b:1"], "evaluator": ["c:1"]}

    with pytest.warns(UserWarning, match='has the job "master", which is "chief"'):
        read = from_tf_config({"cluster": cluster, "task": {"type": job, "index": 0}})

    assert read.jobs == {"chief": ("a:1",), "worker": ("b:1",)}
    assert read.task == Task("chief" if job == "master" else job, 0)


@pytest.mark.parametrize(
    ("worker_hosts", "ps_hosts"),
    [
        ("a:1,b:1", "c:1"),
        (" a:1, b:1 ", "c:1 "),
        (["a:1", "b:1"], ("c:1",)),
    ],
)
def test_hosts_may_be_given_by_hand(worker_hosts, ps_hosts):
    cluster = Cluster.from_hosts(
        worker_hosts=worker_hosts, ps_hosts=ps_hosts, job_name="ps", task_id=0
    )

    assert cluster.jobs == {"worker": ("a:1", "b:1"), "ps": ("c:1",)}
    assert cluster.task == Task("ps", 0)


@pytest.mark.parametrize("nothing", ["", " ", [], ()])
def test_no_hosts_given_by_hand_are_a_process_alone(nothing):
    assert Cluster.from_hosts(worker_hosts=nothing, ps_hosts=nothing) == Cluster.local()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"task_id": 2}, r"job_name='worker', task_id=2\): .*less than 2"),
        ({"task_id": "one"}, r"task_id='one'\): .*whole number"),
        ({"job_name": "ps"}, '"ps 0" is not in the cluster'),
        ({"worker_hosts": "a:1,,b:1"}, "needs a host name or IP.*'' for worker 1"),
        ({"worker_hosts": "a:1;b:1"}, "Received: 'a:1;b:1' for worker 0"),
        ({"worker_hosts": "grpc://a:1"}, "without a scheme"),
        ({"worker_hosts": "", "task_id": 1}, 'worker 1 needs the "cluster"'),
    ],
)
def test_wrong_flags_are_an_error_that_shows_them(flags, message):
    from_flags = functools.partial(Cluster.from_hosts, worker_hosts="a:1,b:1")

    with pytest.raises(ValueError, match=r"from_hosts\(.*" + message):
        from_flags(**flags)


def test_each_task_has_an_address():
    cluster = from_cluster({"chief": ["a:1"], "worker": ["b:1"]})

    assert cluster.addresses == {Task("chief", 0): "a:1", Task("worker", 0): "b:1"}
    assert cluster.chief == Task("chief", 0)


@pytest.mark.processes
def test_what_needs_no_tensorflow_loads_none():
    program = (
        "import sys, kerasdist.config, kerasdist.cluster, kerasdist.preflight\n"
        "print([name for name in ('tensorflow', 'keras') if name in sys.modules])"
    )
    repository = Path(__file__).parents[1]

    loaded = subprocess.check_output([sys.executable, "-c", program], cwd=repository, text=True)

    assert loaded.strip() == "[]"
