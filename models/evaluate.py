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
from models import command, datasets, deployment, input_pipeline, nets, preprocessing, saved_model
from models.chief_first import chief_first
from models.usage_error import UsageError


def main(argv: Sequence[str]) -> int:
    """Evaluate as the flags `argv` say and return the exit code, one of docs/clusters.md."""
    return command.run(_evaluate, define_flags=_define_flags, argv=argv, description=__doc__)


def _define_flags(values: flags.FlagValues) -> None:
    saved_model.define_flags(values)
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
    path = saved_model.path_of(values)
    cluster = _cluster(values)
    strategy = deployment.make_strategy(values, cluster)
    with chief_first(strategy, cluster):
        dataset = datasets.load(
            values.dataset_name, split=values.dataset_split_name, data_dir=values.dataset_dir
        )
    with strategy.scope():
        model = saved_model.load(path)
    _check_fit(model, dataset, values)
    global_batch_size = values.batch_size * strategy.num_replicas_in_sync
    batches = input_pipeline.test_batches(
        dataset,
        preprocess=saved_model.preprocess_of(model, values),
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


def _check_fit(model: keras.Model, dataset: datasets.Dataset, values: flags.FlagValues) -> None:
    num_classes = input_pipeline.num_classes(dataset, labels_offset=values.labels_offset)
    if (model.input_shape[-1], model.output_shape[-1]) != (dataset.channels, num_classes):
        raise UsageError(
            f"The model takes images of {model.input_shape[-1]} channels and tells "
            f"{model.output_shape[-1]} classes apart; --dataset_name {values.dataset_name!r} has "
            f"{dataset.channels} channels and {num_classes} classes."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
