"""Measure a trained classifier: `python -m models.evaluate --help` lists the flags.

    python -m models.evaluate --checkpoint_path=runs/first --dataset_name=digits --dataset_dir=data

Prints how often the right class is the most likely one (Accuracy), or one of the five most likely
(Recall_5). Each example counts once, even if several workers share the work, with or without
parameter servers:

    python -m kerasdist launch --workers 2 -- python -m models.evaluate ...

With --eval_dir=runs/first/eval it also writes event files, a picture of the confusion matrix, and
one of the worst mistakes. With --continuous --model_name=lenet it evaluates each new checkpoint of
a training that is still running, and keeps the best model. It ends when the training is finished,
at --max_number_of_steps, or when there was no new checkpoint for --timeout_secs.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import tensorflow as tf
from absl import flags

import kerasdist

from . import (
    command,
    datasets,
    deployment,
    input_pipeline,
    legacy,
    nets,
    preprocessing,
    saved_model,
    weights,
)
from .chief_first import chief_first
from .evaluation import Evaluation
from .files.eval_dir import EvalDir
from .files.train_dir import TrainDir
from .nets import auxiliary
from .typed_flags import DECAY, define_count, define_number, define_text
from .usage_error import UsageError

# Flags that need --continuous, each with the reason.
_OF_CONTINUOUS = {
    "eval_interval_secs": "without it, there is nothing to wait for",
    "timeout_secs": "without it, there is nothing to wait for",
    "max_number_of_steps": "without it, one model is evaluated",
}


def main(argv: Sequence[str]) -> int:
    """Evaluates as the flags `argv` say and returns the exit code, one of docs/clusters.md."""
    return command.run(
        _evaluate,
        define_flags=define_flags,
        argv=argv,
        description=__doc__,
        replaces=legacy.flags_of("evaluate"),
    )


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of this command."""
    count = functools.partial(define_count, values)

    saved_model.define_flags(values)
    count("max_num_batches", None, "Batches to evaluate. Default: all.")
    count("eval_image_size", None, "Height and width in pixels. Default: that of the model.")
    define_text(values, "eval_dir", None, "Where to write results and pictures. Default: nowhere.")
    flags.DEFINE_bool(
        "continuous",
        False,
        "Evaluate each new checkpoint of a training: --checkpoint_path is its --train_dir. Needs "
        "--model_name.",
        flag_values=values,
    )
    count("eval_interval_secs", 60, "With --continuous, seconds between looks for a checkpoint.")
    count("timeout_secs", 3600, "With --continuous, seconds to wait for a new checkpoint.")
    count("max_number_of_steps", None, "With --continuous, the last step to evaluate.")
    define_number(
        values,
        "moving_average_decay",
        None,
        "Evaluate the moving averages in a checkpoint, whatever the number. A model.keras that was "
        "trained with it holds them.",
        DECAY,
    )
    deployment.define_flags(values)
    input_pipeline.define_flags(values, split="test", batch_size=100)


def _evaluate(values: flags.FlagValues) -> int:
    _check(values)
    path = None if values.continuous else saved_model.path_of(values)
    if path and values.moving_average_decay is not None:
        raise UsageError(
            "--moving_average_decay needs --continuous or a checkpoint: a model.keras that was "
            "trained with it holds the averages."
        )
    cluster = _cluster(values)
    eval_dir = _eval_dir(values, cluster)
    strategy = deployment.make_strategy(values, cluster)
    dataset = _dataset(values, strategy, cluster)
    with strategy.scope():
        model = _built(values, dataset) if path is None else _loaded(values, path)
    evaluation = Evaluation(
        dataset=dataset,
        values=values,
        preprocess=saved_model.preprocess_of(model, values),
        image_size=model.input_shape[1],
        global_batch_size=values.batch_size * strategy.num_replicas_in_sync,
        num_threads=deployment.num_preprocessing_threads(values, cluster, strategy),
    )
    evaluation.check(model)

    measure = functools.partial(_measure, evaluation, model, cluster, eval_dir)
    if values.continuous:
        return _measure_each(values, model, measure, eval_dir)
    if path:
        measure(TrainDir(path.parent).newest_step or 0, str(path))
        return 0
    averages = values.moving_average_decay is not None
    weights.start(model, values.checkpoint_path, averages=averages)
    measure(weights.step_at(values.checkpoint_path), values.checkpoint_path)
    return 0


def _check(values: flags.FlagValues) -> None:
    input_pipeline.check(values)
    if values.preprocessing_name:
        preprocessing.find(values.preprocessing_name)
    if values.model_name:
        nets.find(values.model_name)
    _check_continuous(values)


def _check_continuous(values: flags.FlagValues) -> None:
    for name in "model_name", "checkpoint_path":
        if values.continuous and not values[name].value:
            raise UsageError(
                f"--{name} is missing: --continuous needs the net and the --train_dir."
            )
    for name, reason in _OF_CONTINUOUS.items():
        if values[name].present and not values.continuous:
            raise UsageError(f"--{name} needs --continuous: {reason}.")


def _cluster(values: flags.FlagValues) -> kerasdist.Cluster:
    cluster = deployment.cluster(values)
    # An evaluator does not take part in the training of the cluster.
    if cluster.task.job == "evaluator":
        return kerasdist.Cluster.local()
    if values.continuous and not cluster.is_local:
        raise UsageError("--continuous runs in a process of its own, not in those that train.")
    return cluster


def _eval_dir(values: flags.FlagValues, cluster: kerasdist.Cluster) -> EvalDir | None:
    """Returns the directory to write to, if this task is to write."""
    if not (values.eval_dir and cluster.is_chief):
        return None
    eval_dir = EvalDir(Path(values.eval_dir))
    eval_dir.check()
    return eval_dir


def _dataset(
    values: flags.FlagValues, strategy: tf.distribute.Strategy, cluster: kerasdist.Cluster
) -> datasets.Dataset:
    with chief_first(strategy, cluster):
        dataset = datasets.load(
            values.dataset_name, split=values.dataset_split_name, data_dir=values.dataset_dir
        )
    return input_pipeline.in_the_channels_asked_for(dataset, values)


def _built(values: flags.FlagValues, dataset: datasets.Dataset) -> keras.Model:
    """Returns a fresh net, for the weights of checkpoints."""
    num_classes = input_pipeline.num_classes(dataset, labels_offset=values.labels_offset)
    try:
        model = nets.build(
            values.model_name,
            num_classes=num_classes,
            weight_decay=0.0,
            image_size=values.eval_image_size,
            channels=dataset.channels,
        )
    except ValueError as error:
        raise UsageError(
            f"--eval_image_size={values.eval_image_size} is too small for {values.model_name}."
        ) from error
    return auxiliary.classifier_of(model)


def _loaded(values: flags.FlagValues, path: Path) -> keras.Model:
    """Returns the model in a file, for images of --eval_image_size."""
    model = saved_model.load(path)
    for variable in model.variables:
        variable.regularizer = None  # The loss of the examples, as that of a checkpoint.
    size = values.eval_image_size
    if not size or size == model.input_shape[1]:
        return model
    try:
        other = nets.build(
            values.model_name or model.name,
            num_classes=model.output_shape[-1],
            weight_decay=0.0,
            image_size=size,
            channels=model.input_shape[-1],
        )
        other = auxiliary.classifier_of(other)
        other.set_weights(model.get_weights())
    except ValueError as error:
        raise UsageError(
            f"--eval_image_size={size}: {model.name} was trained with images of "
            f"{model.input_shape[1]} pixels, and cannot take others."
        ) from error
    return other


def _measure(
    evaluation: Evaluation,
    model: keras.Model,
    cluster: kerasdist.Cluster,
    eval_dir: EvalDir | None,
    step: int,
    name: str,
) -> None:
    """Measures the model on all workers; the chief prints and writes the results."""
    with model.distribute_strategy.scope():
        results = evaluation.measure(model)
    if not cluster.is_chief:
        return
    _print_results(evaluation, name, results)
    if eval_dir:
        evaluation.write(eval_dir, model, results, step=step)
        print(f"Written: {eval_dir.path}")


def _measure_each(
    values: flags.FlagValues,
    model: keras.Model,
    measure: Callable[[int, str], None],
    eval_dir: EvalDir | None,
) -> int:
    """Measures each new checkpoint, until the training ends, the last step or the timeout."""
    train_dir = TrainDir(Path(values.checkpoint_path))
    last = max(eval_dir.steps(), default=-1) if eval_dir else -1
    checkpoints = kerasdist.new_checkpoints(
        train_dir.checkpoints,
        after_step=last,
        every_secs=values.eval_interval_secs,
        timeout_secs=values.timeout_secs,
    )
    while not values.max_number_of_steps or last < values.max_number_of_steps:
        found = next(checkpoints, None)
        if found is None:
            return 0
        last, path = found
        if not _take(path, model, values):
            continue
        measure(last, f"{train_dir.path} at step {last}")
        if eval_dir and eval_dir.is_best(last):
            eval_dir.keep_as_best(model)
    print(f"\nDone: step {last} is evaluated.")
    return 0


def _take(path: str, model: keras.Model, values: flags.FlagValues) -> bool:
    """Gives the model the weights of a checkpoint; False if it has been removed meanwhile.

    Raises:
        UsageError: They are of another net.
    """
    try:
        kerasdist.warm_start(model, path, averages=values.moving_average_decay is not None)
    except ValueError as error:
        if not Path(path).exists():
            return False
        raise UsageError(f"--checkpoint_path {values.checkpoint_path!r}: {error}") from error
    return True


def _print_results(evaluation: Evaluation, name: str, results: dict[str, float]) -> None:
    values = evaluation.values
    print(
        f"\n{name} on {command.examples(evaluation.num_examples)} of {values.dataset_name}, "
        f"split {values.dataset_split_name}:"
    )
    for metric, value in results.items():
        print(f"  {metric}  {value:.4f}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
