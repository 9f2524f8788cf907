"""Whether the published models and schemas know each field of a manifest.

Run by the Python of `.venvs/deploy`, which has them; nothing of ours is imported.

    .venvs/deploy/bin/python tests/deploy/schemas.py deploy/*.yaml      # prints the problems
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import kubeflow.training.models  # ty: ignore[import-not-found]
import yaml
from kubeflow_trainer_api import models  # ty: ignore[import-not-found]
from kubernetes import client  # ty: ignore[import-not-found]


def main(paths: list[str]) -> int:
    """Prints each problem of the manifests in a line; returns 1 if there is one."""
    problems = [f"{path}: {problem}" for path in paths for problem in problems_of(path)]
    print("\n".join(problems))
    return 1 if problems else 0


def problems_of(path: str) -> list[str]:
    with open(path) as file:
        documents = list(yaml.safe_load_all(file))
    return [problem for document in documents for problem in _problems_of(document)]


def _problems_of(document: dict[str, Any]) -> list[str]:
    if "kind" not in document:
        return _problems_of_skypilot(document)
    read = _READERS.get((document["apiVersion"], document["kind"]))
    if read is None:
        return [f"no model of {document['apiVersion']} {document['kind']}"]
    try:
        return list(_lost(document, read(document), document["kind"]))
    except ValueError as error:  # Also pydantic's.
        return [str(error)]


def _lost(given: Any, kept: Any, where: str):
    """Yields what a model has not kept of a document, since it does not know it."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name in kept:
                yield from _lost(value, kept[name], f"{where}.{name}")
            else:
                yield f"{where}.{name} is unknown"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (value, other) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(value, other, f"{where}[{index}]")
    elif given != kept:
        yield f"{where}: {given!r} is read as {kept!r}"


def _by_trainer(model):
    return lambda document: model.from_dict(document).to_dict()


def _by_kubernetes(model):
    # The client looks for models by name, among its own ones alone.
    vars(client.models).update(vars(kubeflow.training.models))

    def read(document):
        api = client.ApiClient()
        response = SimpleNamespace(data=json.dumps(document))
        return api.sanitize_for_serialization(api.deserialize(response, model))

    return read


def _problems_of_skypilot(document: dict[str, Any]) -> list[str]:
    import jsonschema  # Five seconds with the next line.
    from sky.utils import schemas  # ty: ignore[import-not-found]

    asked = (
        (document, schemas.get_task_schema()),
        (
            document.get("resources", {}),
            schemas.get_resources_schema(),
        ),
    )
    return [
        f"{error.json_path}: {error.message}"
        for part, schema in asked
        for error in jsonschema.Draft202012Validator(schema).iter_errors(part)
    ]


_READERS = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): _by_trainer(models.TrainerV1alpha1TrainJob),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): _by_trainer(
        models.TrainerV1alpha1TrainingRuntime
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): _by_trainer(models.JobsetV1alpha2JobSet),
    ("kubeflow.org/v1", "TFJob"): _by_kubernetes(kubeflow.training.models.KubeflowOrgV1TFJob),
    ("batch/v1", "Job"): _by_kubernetes(client.V1Job),
    ("v1", "Service"): _by_kubernetes(client.V1Service),
    ("networking.k8s.io/v1", "NetworkPolicy"): _by_kubernetes(client.V1NetworkPolicy),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
