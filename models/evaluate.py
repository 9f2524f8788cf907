"""Measure a trained classifier: `python -m models.evaluate --help` lists the flags.

    python -m models.evaluate --checkpoint_path=runs/first --dataset_name=digits --dataset_dir=data

Prints how often the right class is the first (Accuracy) and among the first five (Recall_5). Each
example counts once, also where several workers share the work, with or without parameter servers:

    python -m kerasdist launch --workers 2 -- python -m models.evaluate ...
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import keras
from absl import flags

import kerasdist
from models import command, datasets, deployment, input_pipeline, nets, preprocessing
from models.chief_first import chief_first
from models.train_dir import TrainDir
from models.usage_error import UsageError


def main(argv: Sequence[str]) -> int:
    """Evaluate as the flags `argv` say and return the exit code, one of docs/clusters.md."""
    return command.run(_evaluate, define_flags=_define_flags, argv=argv, description=__doc__)


def _define_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "checkpoint_path", None, "A --train_dir, or a .keras file.", flag_values=values
    )
    flags.DEFINE_string(
        "model_name",
        None,
        "The net whose preprocessing is used. Default: the one that the model is named after.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_num_batches", None, "Default: all.", lower_bound=1, flag_values=values
    )
    deployment.define_flags(values)
    input_pipeline.define_flags(values, split="test", batch_size=100)


def _evaluate(values: flags.FlagValues) -> int:
    input_pipeline.check(values)
    if values.preprocessing_name:
        preprocessing.find(values.preprocessing_name)
    if values.model_name:
        nets.find(values.model_name)
    path = _model_path(values)
    cluster = _cluster(values)
    strategy = deployment.make_strategy(values, cluster)
    with chief_first(strategy, cluster):
        dataset = datasets.load(
            values.dataset_name, split=values.dataset_split_name, data_dir=values.dataset_dir
        )
    with strategy.scope():
        model = _load_model(path)
    _check_fit(model, dataset, values)
    global_batch_size = values.batch_size * strategy.num_replicas_in_sync
    batches = input_pipeline.test_batches(
        dataset,
        preprocess=_preprocess(model, values),
        image_size=model.input_shape[1],
        labels_offset=values.labels_offset,
        global_batch_size=global_batch_size,
        num_threads=values.num_preprocessing_threads,
        ignore_other_labels=values.ignore_other_labels,
    )
    num_examples = dataset.num_examples
    if values.max_num_batches:
        batches = batches.take(values.max_num_batches)
        num_examples = min(num_examples, values.max_num_batches * global_batch_size)

    with strategy.scope():
        model.compile(
            loss=keras.losses.CategoricalCrossentropy(from_logits=True),
            weighted_metrics=[
                keras.metrics.CategoricalAccuracy(name="Accuracy"),
                keras.metrics.TopKCategoricalAccuracy(5, name="Recall_5"),
            ],
        )
    try:
        results = model.evaluate(batches, return_dict=True)
    except input_pipeline.READ_ERRORS as error:
        told = input_pipeline.unread(error, values, dataset)
        if told is None:
            raise
        raise told from error
    if cluster.is_chief:
        _print_results(values, path, num_examples, results)
    return 0


def _cluster(values: flags.FlagValues) -> kerasdist.Cluster:
    cluster = deployment.cluster(values)
    # An evaluator stands beside the cluster and works alone.
    return kerasdist.Cluster.local() if cluster.task.job == "evaluator" else cluster


def _print_results(
    values: flags.FlagValues, path: Path, num_examples: int, results: dict[str, float]
) -> None:
    split = values.dataset_split_name
    print(f"\n{path} on {num_examples} examples of {values.dataset_name}, split {split}:")
    for name in "Accuracy", "Recall_5":
        print(f"  {name}  {results[name]:.4f}")


def _model_path(values: flags.FlagValues) -> Path:
    if not values.checkpoint_path:
        raise UsageError("--checkpoint_path is missing: a --train_dir, or a .keras file.")
    path = Path(values.checkpoint_path)
    model_path = TrainDir(path).model if path.is_dir() else path
    if not model_path.is_file():
        raise UsageError(
            f"--checkpoint_path {str(path)!r}: there is no model {model_path}. Train one with "
            "python -m models.train."
        )
    return model_path


def _load_model(path: Path) -> keras.Model:
    try:
        return keras.saving.load_model(path, compile=False)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(
            f"--checkpoint_path {str(path)!r} is not a Keras model: {error}"
        ) from error


def _check_fit(model: keras.Model, dataset: datasets.Dataset, values: flags.FlagValues) -> None:
    num_classes = input_pipeline.num_classes(dataset, labels_offset=values.labels_offset)
    if (model.input_shape[-1], model.output_shape[-1]) != (dataset.channels, num_classes):
        raise UsageError(
            f"The model takes images of {model.input_shape[-1]} channels and tells "
            f"{model.output_shape[-1]} classes apart; --dataset_name {values.dataset_name!r} has "
            f"{dataset.channels} channels and {num_classes} classes."
        )


def _preprocess(model: keras.Model, values: flags.FlagValues) -> preprocessing.Preprocess:
    if values.preprocessing_name:
        return preprocessing.find(values.preprocessing_name)
    name = values.model_name or model.name
    if name not in nets.NETS:
        raise UsageError(
            f"The model is named {name!r}, which is no net of ours. Say how its images are "
            f"prepared: --preprocessing_name={'|'.join(preprocessing.PREPROCESSINGS)}."
        )
    return preprocessing.find(nets.find(name).preprocessing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
