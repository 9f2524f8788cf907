"""Reads TF_CONFIG, which says which processes there are, and which of them this one is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kerasdist.cluster.task import Task, read_index
from kerasdist.support.text import did_you_mean
from kerasdist.support.users_line import warn

# As Vertex AI itself translates them in TF_CONFIG.
_JOB_OF_POOL = {
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}
_TASK_FORM = '"task": {"type": "worker", "index": 0}'


@dataclass(frozen=True, kw_only=True, slots=True)
class TFConfig:
    """What TF_CONFIG says.

    Attributes:
        jobs: The addresses of each job, not yet checked. Empty if the process is alone.
        task: This process.
    """

    jobs: Mapping[str, Any]
    task: Task


def read_tf_config(text: str) -> TFConfig:
    """Returns the jobs and the task of a TF_CONFIG; a process that is alone is worker 0.

    Keys that cloud launchers add ("environment", "job", "trial", ...) are ignored.

    Raises:
        ValueError: The text is not JSON, or has another form than TensorFlow's.

    Example:
        read_tf_config('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}')
    """
    config = _read_json(text)
    _check_keys(config)
    jobs = _read_object(config, "cluster")
    task = _read_task(_read_object(config, "task"))
    jobs, task = _without_old_names(jobs, task)
    # Without a cluster the first process can only be alone; a later one has lost its cluster.
    if not jobs and task in (None, Task("chief", 0), Task("worker", 0)):
        return TFConfig(jobs={}, task=Task("worker", 0))
    if task is None:
        raise ValueError(
            f'The "cluster" needs a "task" that says which process this is. Add {_TASK_FORM}, '
            "with another index on every process."
        )
    return TFConfig(jobs=jobs, task=task)


def read_cluster_spec(text: str) -> TFConfig | None:
    """Returns what Vertex AI's CLUSTER_SPEC says, which has its own names for jobs.

    Returns:
        None for a variable of that name that somebody else has set.

    Raises:
        ValueError: It has no task, or another form.

    Example:
        read_cluster_spec('{"cluster": {"workerpool0": ["a:1"]}, "task": ...}').task   # chief 0
    """
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError):
        return None
    pools = spec.get("cluster") if isinstance(spec, dict) else None
    if not isinstance(pools, dict) or not pools or not pools.keys() <= _JOB_OF_POOL.keys():
        return None
    jobs = {_JOB_OF_POOL[pool]: addresses for pool, addresses in pools.items()}
    task = _read_object(spec, "task")
    if task.get("type") in list(_JOB_OF_POOL):  # In a dict, a list would be an error of its own.
        task = {**task, "type": _JOB_OF_POOL[task["type"]]}
    return read_tf_config(json.dumps({"cluster": jobs, "task": task}))


def _without_old_names(jobs: dict[str, Any], task: Task | None) -> tuple[dict, Task | None]:
    """Returns what a platform sets for TensorFlow 1, in the form of TensorFlow 2.

    Users cannot change it: the chief is a "master", and the evaluator is in the cluster.
    """
    jobs = {job: addresses for job, addresses in jobs.items() if job != "evaluator"}
    if "master" not in jobs or "chief" in jobs:
        return jobs, task
    warn('TF_CONFIG has the job "master", which is "chief" in TensorFlow 2, and is read as that.')
    jobs["chief"] = jobs.pop("master")
    return jobs, Task("chief", task.index) if task and task.job == "master" else task


def _read_json(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(_describe_json_error(error)) from error
    except (RecursionError, ValueError):
        raise ValueError(
            "Too many brackets inside each other, or digits of a number. Received: "
            f"{text[:20]!r}... of {len(text):,} characters. Write it with `json.dumps(...)`."
        ) from None
    if not isinstance(config, dict):
        raise ValueError(f'Must be a JSON object with "cluster" and "task". Received: {config!r}.')
    return config


def _describe_json_error(error: json.JSONDecodeError) -> str:
    near = error.doc[max(0, error.pos - 20) : error.pos + 20]
    is_quote = error.doc[error.pos : error.pos + 1] == "'"
    quotes = " JSON does not allow single quotes." if is_quote else ""
    return (
        f"Not valid JSON at line {error.lineno} column {error.colno}: {error.msg}. "
        f"Received near there: {near!r}.{quotes} Write it with `json.dumps(...)`."
    )


def _check_keys(config: Mapping[str, Any]) -> None:
    # Launchers add keys of their own, so an unknown key is a mistake only if it looks like one that
    # is missing.
    missing = [key for key in ("cluster", "task") if key not in config]
    if "cluster" in missing and "sparseCluster" in config:
        raise ValueError(
            '"sparseCluster", which tells a task only some of the addresses, is not supported. '
            'Give every task the whole "cluster".'
        )
    for key, value in config.items():
        if len(missing) == 2 and isinstance(value, dict) and "cluster" in value:
            raise ValueError(
                f'The object with "cluster" is inside of "{key}". Give that one alone. Form: '
                f'"cluster": ..., {_TASK_FORM}.'
            )
        suggestion = did_you_mean(key, missing)
        if suggestion:
            raise ValueError(
                f'Unknown key "{key}".{suggestion} Form: "cluster": ..., {_TASK_FORM}.'
            )


def _read_object(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f'"{key}" must be a JSON object. Received: {key}={value!r}.')
    return value


def _read_task(task: Mapping[str, Any]) -> Task | None:
    if not task:
        return None
    for key in ("type", "index"):
        if key not in task:
            raise ValueError(f'"task" has no "{key}". Received: task={task!r}. Form: {_TASK_FORM}.')
    if not isinstance(task["type"], str):
        raise ValueError(f'"type" of the task must be text. Received: type={task["type"]!r}.')
    return Task(task["type"], read_index(task["index"]))
