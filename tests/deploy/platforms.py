"""The processes that a file of deploy/ starts, with the variables that its platform gives them.

    first, *others = processes_of(Path("deploy/jobset.yaml"))
    first.host, first.environ       # "train-worker-0-0.train", {"KERASDIST_RANK": "0", ...}

As the sources of Kubernetes, JobSet, Kubeflow and SkyPilot have it: what they set themselves, and
the variables of a manifest, which may ask for labels and annotations that they add.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_INDEX = "batch.kubernetes.io/job-completion-index"


class Process(NamedTuple):
    """A process.

    Attributes:
        host: The name under which the others reach it.
        environ: Its variables.
        command: The arguments of its image, where a manifest has some.
    """

    host: str
    environ: dict[str, str]
    command: list[str]


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the documents of a file."""
    return list(yaml.safe_load_all(path.read_text()))


def processes_of(path: Path) -> list[Process]:
    """Returns the processes that a file starts; none if it starts nothing."""
    documents = {each.get("kind", "SkyPilot"): each for each in read(path)}
    for kind, start in _STARTS.items():
        if kind in documents:
            return list(start(documents))
    return []


def pod_templates(document: Any) -> Iterator[dict[str, Any]]:
    """Yields what describes pods, wherever it is in a document."""
    if isinstance(document, dict):
        if "containers" in document.get("spec", {}):
            yield document
        for value in document.values():
            yield from pod_templates(value)
    elif isinstance(document, list):
        for value in document:
            yield from pod_templates(value)


def _of_a_job(documents: Mapping[str, Any]) -> Iterator[Process]:
    job = documents["Job"]
    name, subdomain = job["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]
    service = documents["Service"]
    assert service["metadata"]["name"] == subdomain and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    uid = {"batch.kubernetes.io/controller-uid": "9b1d02"}
    for index in range(job["spec"]["completions"]):
        host = f"{name}-{index}.{subdomain}"
        yield _pod(job["spec"]["template"], host, {**uid, _INDEX: str(index)})


def _of_a_jobset(documents: Mapping[str, Any]) -> Iterator[Process]:
    jobset = documents["JobSet"]
    yield from _pods_of(jobset["metadata"]["name"], jobset["spec"], jobset["spec"])


def _pods_of(name: str, spec: Mapping[str, Any], jobset: Mapping[str, Any]) -> Iterator[Process]:
    first = jobset.get("coordinator", {})
    added = {
        "jobset.sigs.k8s.io/jobset-uid": "2f0c1a",
        "jobset.sigs.k8s.io/restart-attempt": "0",
    }
    if first:
        place = f"{name}-{first['replicatedJob']}-{first['jobIndex']}-{first['podIndex']}"
        added["jobset.sigs.k8s.io/coordinator"] = f"{place}.{name}"
    for job in spec["replicatedJobs"]:
        template = job["template"]["spec"]
        for index in range(template["completions"]):
            host = f"{name}-{job['name']}-0-{index}.{name}"
            yield _pod(template["template"], host, {**added, _INDEX: str(index)})


def _of_a_trainjob(documents: Mapping[str, Any]) -> Iterator[Process]:
    """A TrainJob is a JobSet, made of a runtime, the fields of the job, and its patches."""
    job = documents["TrainJob"]
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    runtime = documents.get("TrainingRuntime")
    if runtime is None:
        assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
        node: Any = {"name": "node", "env": []}
        template: dict[str, Any] = {"metadata": {}, "spec": {"containers": [node]}}
        jobset: dict[str, Any] = {}
        told = _of_torch(name, trainer["numNodes"])
    else:
        kind = {"kind": "TrainingRuntime", "name": runtime["metadata"]["name"]}
        assert job["spec"]["runtimeRef"] == kind
        jobset = runtime["spec"]["template"]["spec"]
        (replicated,) = jobset["replicatedJobs"]
        template = replicated["template"]["spec"]["template"]
        told = [{}] * trainer["numNodes"]
    (container,) = template["spec"]["containers"]
    assert container["name"] == "node"
    container["env"] = [*container["env"], *trainer["env"]]
    for patch in job["spec"].get("runtimePatches", ()):
        (patched,) = pod_templates(patch)
        template["metadata"].update(patched["metadata"])
    replicated = {"template": template, "completions": trainer["numNodes"]}
    spec = {"replicatedJobs": [{"name": "node", "template": {"spec": replicated}}]}
    for process, more in zip(_pods_of(name, spec, jobset), told, strict=True):
        process.environ.update(more)
        yield process


def _of_torch(name: str, num_nodes: int) -> list[dict[str, str]]:
    said = {
        "PET_NNODES": str(num_nodes),
        "PET_NPROC_PER_NODE": "auto",
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29400",
    }
    return [{**said, "PET_NODE_RANK": str(rank)} for rank in range(num_nodes)]


def _of_a_tfjob(documents: Mapping[str, Any]) -> Iterator[Process]:
    job = documents["TFJob"]
    name, specs = job["metadata"]["name"], job["spec"]["tfReplicaSpecs"]
    cluster = {
        kind.lower(): [
            f"{name}-{kind.lower()}-{index}.default.svc:2222" for index in range(spec["replicas"])
        ]
        for kind, spec in specs.items()
    }
    for kind, spec in specs.items():
        assert [each["name"] for each in spec["template"]["spec"]["containers"]] == ["tensorflow"]
        for index, address in enumerate(cluster[kind.lower()]):
            task = {"type": kind.lower(), "index": index}
            text = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
            process = _pod(spec["template"], address.removesuffix(":2222"), {})
            process.environ["TF_CONFIG"] = text
            yield process


def _of_skypilot(documents: Mapping[str, Any]) -> Iterator[Process]:
    task = documents["SkyPilot"]
    hosts = [f"10.0.0.{index + 1}" for index in range(task["num_nodes"])]
    for index, host in enumerate(hosts):
        told = {
            "SKYPILOT_NUM_NODES": str(len(hosts)),
            "SKYPILOT_NODE_RANK": str(index),
            "SKYPILOT_NODE_IPS": "\n".join(hosts),
        }
        yield Process(host, {**task["envs"], **told}, [])


def _pod(template: Mapping[str, Any], host: str, added: Mapping[str, str]) -> Process:
    """Returns the process of a pod; `added` are its labels and annotations of the platform."""
    (container,) = template["spec"]["containers"]
    environ = dict(_variables(container["env"], added))
    if _INDEX in added:
        environ["JOB_COMPLETION_INDEX"] = added[_INDEX]
    return Process(host, environ, container.get("args", []))


def _variables(
    given: Iterable[Mapping[str, Any]], added: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    known = {"KERASDIST_SECRET": "of the job"}  # There is a Secret.
    for each in given:
        if "value" in each:
            # A variable may use those before it.
            value = re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], each["value"])
        elif "secretKeyRef" in each["valueFrom"]:
            value = known[each["name"]]
        else:
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            match = re.fullmatch(r"metadata\.(?:labels|annotations)\['(.*)'\]", path)
            assert match, path
            value = added[match[1]]
        known[each["name"]] = value
        yield each["name"], value


_STARTS = {
    "Job": _of_a_job,
    "JobSet": _of_a_jobset,
    "TrainJob": _of_a_trainjob,
    "TFJob": _of_a_tfjob,
    "SkyPilot": _of_skypilot,
}
