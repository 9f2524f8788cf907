"""A process that finds no cluster, although it was started as one of several."""

import re
import warnings

import pytest

from kerasdist.cluster import Cluster
from kerasdist.support import memory


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"PMIX_RANK": "1"}, "PMIx started this process as one of at least 2 (PMIX_RANK=1), but"),
        ({"PALS_RANKID": "2"}, "PALS started this process as one of at least 3 (PALS_RANKID=2),"),
        ({"JOB_COMPLETION_INDEX": "1"}, "Kubernetes .* at least 2 (JOB_COMPLETION_INDEX=1), but"),
        (
            {"VC_TASK_INDEX": "0", "VC_PS_NUM": "1", "VC_WORKER_NUM": "2"},
            "Volcano .* one of 3 (VC_PS_NUM, VC_WORKER_NUM), but TF_CONFIG is not set",
        ),
        ({"VC_TASK_INDEX": "1"}, "Volcano .* at least 2 (VC_TASK_INDEX=1), but does not say"),
        ({"SLURM_NTASKS": "4"}, "Slurm allocated 4 tasks (SLURM_NTASKS=4), but `srun` did not"),
    ],
)
def test_there_is_one_warning_and_the_way_out(environ, told, monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "said", set())
    pattern = re.escape(told).replace(r"\.\*", ".*")
    with pytest.warns(UserWarning, match=f"^{pattern}.*trains by itself.*Cluster.local") as seen:
        assert Cluster.from_env(environ) == Cluster.local()
        Cluster.from_env(environ)

    assert len(seen) == 1


@pytest.mark.parametrize(
    "environ",
    [
        {"OMPI_COMM_WORLD_SIZE": "1", "SM_HOSTS": '["algo-1"]', "SLURM_NTASKS": "1"},
        {"WORLD_SIZE": "2"},
        {"SM_HOSTS": "algo-1", "CLUSTER_SPEC": '{"cluster": 3}', "PMI_SIZE": "many"},
        {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},
        {"OMPI_COMM_WORLD_SIZE": "2", "KERASDIST_NUM_TASKS": "2", "TF_CONFIG": "{}"},
        {"KERASDIST_NUM_TASKS": "1"},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "0"},
        {"PET_NNODES": "1:4", "PET_NODE_RANK": "0"},
        {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
        {"PMIX_RANK": "0", "PALS_RANKID": "0", "JOB_COMPLETION_INDEX": "0"},
        {"VC_TASK_INDEX": "0", "VC_WORKER_NUM": "1", "VC_WORKER_HOSTS": "job-worker-0.job"},
        {"KERASDIST_NUM_PROCESSES": "1", "KERASDIST_ADDRESS": "a:1"},
        {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0"},
        {"MF_PARALLEL_NUM_NODES": "1", "MF_PARALLEL_NODE_INDEX": "0"},
        {"AWS_BATCH_JOB_NUM_NODES": "1", "AWS_BATCH_JOB_NODE_INDEX": "0"},
        {"AWS_BATCH_JOB_ARRAY_INDEX": "3"},
    ],
)
def test_there_is_no_warning_where_it_is_meant_or_the_only_one(environ, monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "said", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cluster.from_env(environ) == Cluster.local()


@pytest.mark.parametrize("text", [{}, {"TF_CONFIG": " "}])
def test_a_task_of_a_launch_whose_tf_config_is_gone_is_an_error(text):
    with pytest.raises(ValueError, match=r"^TF_CONFIG is gone: .* one of 2 tasks .*TF_CONFIG={}"):
        Cluster.from_env({"KERASDIST_NUM_TASKS": "2", **text})
