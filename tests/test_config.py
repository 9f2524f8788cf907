"""DeploymentConfig: the legacy fields, and a message for every mistake."""

import dataclasses
from typing import Any

import pytest

from kerasdist.config import DeploymentConfig


def test_defaults_are_those_of_tf_slim():
    assert dataclasses.asdict(DeploymentConfig()) == {
        "num_clones": 1,
        "clone_on_cpu": False,
        "replica_id": 0,
        "num_replicas": 1,
        "num_ps_tasks": 0,
        "sync_replicas": False,
        "replicas_to_aggregate": -1,
        "worker_job_name": "worker",
        "ps_job_name": "ps",
    }


def test_replicas_need_no_parameter_servers():
    config = DeploymentConfig(num_replicas=2, replica_id=1)

    assert config.num_ps_tasks == 0


def test_every_field_can_be_set():
    fields: dict[str, Any] = {
        "num_clones": 4,
        "clone_on_cpu": True,
        "replica_id": 2,
        "num_replicas": 3,
        "num_ps_tasks": 2,
        "sync_replicas": True,
        "replicas_to_aggregate": 5,
        "worker_job_name": "trainer",
        "ps_job_name": "variables",
    }

    assert dataclasses.asdict(DeploymentConfig(**fields)) == fields


def test_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DeploymentConfig().num_clones = 2  # ty: ignore[invalid-assignment]


def test_fields_are_given_by_name():
    with pytest.raises(TypeError, match=r"Write DeploymentConfig\(num_clones=2, clone_on_cpu=True"):
        DeploymentConfig(2, True)  # ty: ignore[too-many-positional-arguments]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_clones": 0}, r"`num_clones` must be at least 1\. Received: num_clones=0\."),
        ({"num_clones": -1}, "num_clones=-1"),
        ({"num_clones": 10**9}, "`num_clones` must be at most 1,000.*num_clones=1000000000"),
        ({"num_replicas": 0}, "`num_replicas` must be at least 1.*num_replicas=0"),
        ({"num_ps_tasks": -1}, "`num_ps_tasks` must be at least 0.*num_ps_tasks=-1"),
        ({"replica_id": -1}, "`replica_id` must be at least 0.*replica_id=-1"),
        ({"replica_id": 1}, "less than `num_replicas`.*replica_id=1, num_replicas=1"),
        ({"replica_id": 2, "num_replicas": 2}, "replica_id=2, num_replicas=2"),
        ({"worker_job_name": ""}, "`worker_job_name` must not be empty.*worker_job_name=''"),
        ({"ps_job_name": " "}, "`ps_job_name` must not be empty.*ps_job_name=' '"),
        ({"sync_replicas": True, "replicas_to_aggregate": 0}, "at least 1, or -1.*aggregate=0"),
        ({"sync_replicas": True, "replicas_to_aggregate": -2}, "replicas_to_aggregate=-2"),
        (
            {"num_replicas": 2, "num_ps_tasks": 1, "replicas_to_aggregate": 2},
            "replicas_to_aggregate=2, sync_replicas=False. Give sync_replicas=True, too",
        ),
        (
            {"num_replicas": 3, "sync_replicas": True, "replicas_to_aggregate": 2},
            "Backup workers need parameter servers.*none can be left out. Received: replicas_to_agg"
            "regate=2, num_replicas=3, num_ps_tasks=0. Use num_ps_tasks=1, or leave",
        ),
        (
            {"num_replicas": 3, "sync_replicas": True, "replicas_to_aggregate": 6},
            "Several gradients of a worker.*`callbacks.GradientAccumulation` adds.*aggregate=6",
        ),
        ({"ps_job_name": "worker"}, "must differ.*worker_job_name='worker', ps_job_name='worker'"),
    ],
)
def test_wrong_value_is_an_error_that_shows_it(fields, message):
    with pytest.raises(ValueError, match=message):
        DeploymentConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_clones": True}, r"`num_clones` must be an int\. Received: num_clones=True\."),
        ({"num_clones": 2.0}, r"num_clones=2\.0"),
        ({"num_replicas": "2"}, "`num_replicas` must be an int.*num_replicas='2'"),
        ({"replica_id": None}, "`replica_id` must be an int.*replica_id=None"),
        ({"num_ps_tasks": False}, "`num_ps_tasks` must be an int.*num_ps_tasks=False"),
        ({"clone_on_cpu": "False"}, "`clone_on_cpu` must be True or False.*clone_on_cpu='False'"),
        ({"clone_on_cpu": 1}, "clone_on_cpu=1"),
        ({"sync_replicas": 1}, "`sync_replicas` must be True or False.*sync_replicas=1"),
        ({"sync_replicas": True, "replicas_to_aggregate": True}, "must be an int.*aggregate=True"),
        ({"worker_job_name": None}, "`worker_job_name` must be a str.*worker_job_name=None"),
    ],
)
def test_wrong_type_is_an_error_that_shows_it(fields, message):
    with pytest.raises(TypeError, match=message):
        DeploymentConfig(**fields)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clone_device", "which TF-Slim's has. The strategy of `make_strategy"),
        ("variables_device", "which TF-Slim's has. The strategy of `make_strategy"),
        ("clone_scope", "Clones have no names here"),
        ("inputs_device", "tf.data runs on the CPU"),
        ("num_gpus", "no attribute 'num_gpus'.$"),
    ],
)
def test_attributes_of_slims_config_say_what_replaces_them(name, message):
    with pytest.raises(AttributeError, match=message):
        getattr(DeploymentConfig(), name)
