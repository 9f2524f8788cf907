r"""Train an image classifier: `python -m models.train --help` lists the flags.

    mkdir -p data
    python -m models.train --model_name=lenet --dataset_name=digits --dataset_dir=data \
        --train_dir=runs/first --batch_size=32 --max_number_of_steps=500 --num_clones=2 \
        --clone_on_cpu --optimizer=momentum

The flags and their defaults are those of slim's trainer, with two exceptions: --train_dir and
--dataset_name must be given, and summaries and lines about the loss are only written if
--save_summaries_secs and --log_every_n_steps are given. --batch_size is per clone. All flags are
checked before anything is written. Ctrl-C ends training early, with a checkpoint and the model
trained so far. A run that was ended or killed resumes when the same command is given again.

Two workers on this machine, each with as many clones as the flags say:

    python -m kerasdist launch --workers 2 -- python -m models.train ...

With two parameter servers the workers train asynchronously. --batch_size is then that of a step of
one worker, and --max_number_of_steps counts the steps of all workers:

    python -m kerasdist launch --workers 2 --ps 2 -- python -m models.train ...

Synchronously, with a backup worker: each step is the mean of the first two of three gradients, so
nobody waits for the slowest worker. --batch_size is that of one gradient. Slim's --sync_replicas
and --replicas_to_aggregate=2 are the same as --backup 1:

    python -m kerasdist launch --workers 3 --ps 1 --backup 1 -- python -m models.train ...

On several machines, run the same command on each; TF_CONFIG, a launcher, or --worker_hosts and
--task_id say which task it is. Only the chief writes and prints. Ctrl-C ends workers without saving
a model.
"""

import contextlib
import dataclasses
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from absl import flags

import kerasdist

from . import (
    command,
    datasets,
    deployment,
    input_pipeline,
    learning_rates,
    legacy,
    nets,
    optimizers,
    preprocessing,
    programs,
)
from .chief_first import chief_first
from .datasets import splits
from .files import labels
from .files.train_dir import TrainDir
from .nets import auxiliary
from .pictures import first_batch, samples
from .pictures.learning_curve import write_learning_curve
from .training import fine_tuning, gradient_flags, saving
from .training.fit import Run, batches, examples_of_epoch, fit
from .typed_flags import NOT_NEGATIVE, SHARE, define_count, define_number, define_text
from .usage_error import UsageError

_TEST_SPLITS = ("test", "validation")  # The first that the dataset has.


def main(argv: Sequence[str]) -> int:
    """Trains as the flags `argv` say and returns the exit code, one of docs/clusters.md."""
    return command.run(
        _train,
        define_flags=define_flags,
        argv=argv,
        description=__doc__,
        replaces=legacy.flags_of("train"),
    )


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of this command."""
    text = functools.partial(define_text, values)
    count = functools.partial(define_count, values)
    number = functools.partial(define_number, values)

    text("train_dir", None, "The folder for the model, checkpoints and event files.")
    flags.DEFINE_bool(
        "overwrite", False, "Start over and replace the results in --train_dir.", flag_values=values
    )
    text("model_name", "inception_v3", nets.CHOICE)
    count("train_image_size", None, "Height and width in pixels. Default: that of the net.")
    count("max_number_of_steps", None, "Global steps. Default: until Ctrl-C (one process only).")
    count(
        "log_every_n_steps",
        10,
        "Global steps between points in the event files. If given, also between lines in the log; "
        "0 is none of both.",
        at_least=0,
    )
    count(
        "seed",
        0,
        "Seed of the initial weights, the batches and the distortions.",
        at_least=0,
        at_most=2**32 - 1,  # Of NumPy.
    )
    number(
        "weight_decay", 0.00004, "L2 regularization of kernels, with a factor of 1/2.", NOT_NEGATIVE
    )
    number("label_smoothing", 0.0, "Share of a label that is spread over all classes.", SHARE)
    deployment.define_flags(values)
    input_pipeline.define_flags(values, split="train", batch_size=32)
    most = input_pipeline.MOST_AT_ONCE
    count("num_readers", 4, "Files of records that are read beside each other.", at_most=most)
    optimizers.define_flags(values)
    learning_rates.define_flags(values)
    gradient_flags.define_flags(values)
    saving.define_flags(values)
    fine_tuning.define_flags(values)


def _train(values: flags.FlagValues) -> int:
    cluster = deployment.cluster(values)
    train_dir = _check(values, cluster)
    # First of all: TensorFlow cannot make logical devices once it has started.
    strategy = deployment.make_strategy(values, cluster)
    with chief_first(strategy, cluster):
        train, test = _load(values)
    # After the data: the run that writes the dataset draws random file names.
    keras.utils.set_random_seed(values.seed)
    with strategy.scope():
        model = _build(values, train, cluster)
    batch_size = values.batch_size * strategy.num_replicas_in_sync
    plan = kerasdist.plan_training(
        model,
        global_batch_size=batch_size,
        num_examples=examples_of_epoch(values, cluster, train, batch_size),
        files=train_dir.files(),
    )
    # Before the earlier run is cleared: they check flags against the model.
    settings = {**plan.settings, **fine_tuning.describe(values, model)}
    averages = fine_tuning.start(values, model, train_dir)
    kept = _kept(values, cluster, model, train, train_dir)
    average = saving.average_among(kept)
    if average and averages:
        average.set_state(averages)
    if not cluster.is_chief:
        kerasdist.barrier("training directory")
        return _train_and_finish(values, cluster, model, train, test, train_dir, kept)
    with train_dir.taken():
        train_dir.clear(overwrite=values.overwrite)
        print(dataclasses.replace(plan, settings=settings), flush=True)
        kerasdist.barrier("training directory")
        return _train_and_finish(values, cluster, model, train, test, train_dir, kept)


def _kept(
    values: flags.FlagValues,
    cluster: kerasdist.Cluster,
    model: keras.Model,
    train: datasets.Dataset,
    train_dir: TrainDir,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that the flags ask for; writes nothing."""
    kept = [
        *fine_tuning.build(values, model),
        *gradient_flags.build(values, model),
        *saving.build(values, train_dir),
    ]
    if cluster.is_chief:
        # Only once `fit` has begun: it may refuse to resume, and then the files have to stay.
        pipeline = _pipeline(values, cluster, model.distribute_strategy)
        describe = functools.partial(_describe_data, values, train, train_dir, pipeline)
        kept.append(keras.callbacks.LambdaCallback(on_train_begin=lambda logs: describe()))
    return kept


def _describe_data(
    values: flags.FlagValues,
    train: datasets.Dataset,
    train_dir: TrainDir,
    pipeline: Mapping[str, Any],
) -> None:
    """Writes the names of the classes, a picture of examples and, if asked, the first batch."""
    names = train.label_names[values.labels_offset :]
    labels.write(train_dir.labels, names)
    # If a file is broken, the training names it.
    with contextlib.suppress(*input_pipeline.READ_ERRORS):
        samples.write_picture(
            train,
            _preprocess(values),
            names,
            train_dir.samples,
            image_size=_image_size(values),
            labels_offset=values.labels_offset,
            seed=values.seed,
        )
        if values.save_summaries_secs is not None and not train_dir.is_begun:
            images, *_ = next(iter(batches(values, train, 1, pipeline)))
            first_batch.write_events(images.numpy(), train_dir.events)


def _train_and_finish(
    values: flags.FlagValues,
    cluster: kerasdist.Cluster,
    model: keras.Model,
    train: datasets.Dataset,
    test: datasets.Dataset | None,
    train_dir: TrainDir,
    kept: list[keras.callbacks.Callback],
) -> int:
    strategy = model.distribute_strategy
    pipeline = _pipeline(values, cluster, strategy)
    run = fit(
        values, cluster, model, train, test, pipeline=pipeline, train_dir=train_dir, kept=kept
    )

    def finish() -> int:
        average = saving.average_among(kept)
        with average.applied(model) if average and run.step else contextlib.nullcontext():
            return _finish(values, model, run, train, test, train_dir)

    if run.interrupted:
        return finish() if cluster.is_chief else run.exit_code
    # The others wait: to the chief, a worker that has ended looks like one that crashed.
    with chief_first(strategy, cluster):
        return finish() if cluster.is_chief else run.exit_code


def _check(values: flags.FlagValues, cluster: kerasdist.Cluster) -> TrainDir:
    """Checks all that can be checked without reading the data; writes nothing."""
    _preprocess(values)
    _check_can_train(values, cluster)
    optimizers.check(values)
    learning_rates.check(values)
    fine_tuning.check(values)
    saving.check(values)
    input_pipeline.check(values)
    if not values.train_dir:
        raise UsageError("--train_dir is missing. Say where to write, such as runs/first.")
    if "://" in values.train_dir:
        raise UsageError(
            f"--train_dir {values.train_dir!r} must be a folder of this machine. Mount the "
            "storage, or copy the results there afterwards."
        )
    train_dir = TrainDir(Path(values.train_dir))
    if cluster.is_chief:  # The others may not even see it.
        train_dir.check(overwrite=values.overwrite)
    return train_dir


def _check_can_train(values: flags.FlagValues, cluster: kerasdist.Cluster) -> None:
    if cluster.task.job == "evaluator":
        raise UsageError(
            f"{cluster.task} cannot train. Launch without --evaluator; `python -m models.evaluate` "
            "measures the model afterwards."
        )
    if not cluster.is_local and not values.max_number_of_steps:
        raise UsageError(
            "--max_number_of_steps is missing. Several workers need it, because Ctrl-C ends them "
            "without saving a model."
        )


def _load(values: flags.FlagValues) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """Returns the split to train on and that of `_test_split`."""

    def load(split: str) -> datasets.Dataset:
        found = datasets.load(values.dataset_name, split=split, data_dir=values.dataset_dir)
        return input_pipeline.in_the_channels_asked_for(found, values)

    train = load(values.dataset_split_name)
    split = _test_split(values, train)
    return train, load(split) if split else None


def _test_split(values: flags.FlagValues, train: datasets.Dataset) -> str | None:
    """Returns the name of the split to test on, if there is one that is not trained on."""
    seen = splits.names_in(values.dataset_split_name)
    unseen = (name for name in _TEST_SPLITS if name not in seen)
    return next((name for name in unseen if name in train.split_names), None)


def _build(
    values: flags.FlagValues, train: datasets.Dataset, cluster: kerasdist.Cluster
) -> keras.Model:
    image_size = _image_size(values)
    try:
        model = nets.build(
            values.model_name,
            num_classes=input_pipeline.num_classes(train, labels_offset=values.labels_offset),
            weight_decay=values.weight_decay,
            image_size=image_size,
            channels=train.channels,
            # There, an update is made of gradients that do not wait for each other.
            synchronized=not deployment.has_synchronous_servers(values, cluster),
        )
    except ValueError as error:
        raise UsageError(
            f"--model_name {values.model_name!r} cannot take images of {image_size} x {image_size} "
            "pixels: its layers shrink them to nothing. Give a larger --train_image_size."
        ) from error
    learning_rate = learning_rates.build(
        values,
        num_examples=train.num_examples,
        num_to_aggregate=deployment.num_to_aggregate(values, cluster),
        whole_steps=bool(values["num_replicas_to_aggregate"].present),
    )
    model.compile(
        optimizer=optimizers.build(values, learning_rate=learning_rate),
        loss=keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=values.label_smoothing
        ),
        # Weighted by the examples' weights, if there are any.
        weighted_metrics=["accuracy"],
    )
    return model


def _pipeline(
    values: flags.FlagValues, cluster: kerasdist.Cluster, strategy: tf.distribute.Strategy
) -> dict[str, Any]:
    """Returns how examples become batches: arguments of `input_pipeline.test_batches`."""
    return {
        "preprocess": _preprocess(values),
        "image_size": _image_size(values),
        "labels_offset": values.labels_offset,
        "global_batch_size": values.batch_size * strategy.num_replicas_in_sync,
        "num_threads": deployment.num_preprocessing_threads(values, cluster, strategy),
        "ignore_other_labels": values.ignore_other_labels,
    }


def _preprocess(values: flags.FlagValues) -> preprocessing.Preprocess:
    return preprocessing.find(
        values.preprocessing_name or nets.find(values.model_name).preprocessing
    )


def _image_size(values: flags.FlagValues) -> int:
    return values.train_image_size or nets.find(values.model_name).image_size


def _finish(
    values: flags.FlagValues,
    model: keras.Model,
    run: Run,
    train: datasets.Dataset,
    test: datasets.Dataset | None,
    train_dir: TrainDir,
) -> int:
    """Writes the results and prints what was done; returns the exit code."""
    if not run.step:
        print("\nInterrupted before the end of the first step: there is no model to save.")
        return command.INTERRUPTED
    path = train_dir.save(auxiliary.classifier_of(model))
    if path != train_dir.model:
        print(f"\nThe model as of step {run.step} is saved in {path} instead.")
        return 1
    if run.history:
        title = f"{values.model_name} on {values.dataset_name}: {run.step} steps"
        write_learning_curve(run.history, train_dir.learning_curve, title=title)
    split = _test_split(values, train)
    if run.interrupted:
        print(f"\nInterrupted: the model as of step {run.step} is saved in {train_dir.model}.")
        if train_dir.is_begun:
            print(f"The same command resumes from step {train_dir.newest_step}.")
    else:
        if test and split:
            accuracy = run.history["val_accuracy"][-1]
            counted = command.examples(test.num_examples)
            print(f"\n{split.title()} accuracy: {accuracy:.4f} ({counted})")
        print("\nWritten:")
        for name, path in train_dir.files().items():
            print(f"  {name:<15} {path}")
    print("\nNext:")
    print(f"  {shlex.join(_evaluate_command(values, train_dir, split))}")
    print(f"  {shlex.join([_program('tensorboard'), f'--logdir={train_dir.path}'])}")
    return run.exit_code


def _evaluate_command(
    values: flags.FlagValues, train_dir: TrainDir, split: str | None
) -> list[str]:
    """Returns how to evaluate the model; on the training split if there is no other."""
    program, *rest = programs.words("evaluate")
    words = [_program(program), *rest, f"--checkpoint_path={train_dir.path}"]
    names = ("dataset_name", "dataset_dir", "preprocessing_name", "labels_offset")
    words += [f"--{name}={values[name].value}" for name in names if values[name].present]
    if split != "test":  # The default.
        words.append(f"--dataset_split_name={split or values.dataset_split_name}")
    words += [
        f"--{name}" for name in ("ignore_other_labels", "use_grayscale") if values[name].value
    ]
    return words


def _program(name: str) -> str:
    """Returns how to call a program of this environment, even if it is not activated."""
    folder = Path(sys.executable).parent
    found = shutil.which(name)
    if found and Path(found).parent == folder:
        return name
    return (
        os.path.relpath(folder / name) if folder.is_relative_to(Path.cwd()) else str(folder / name)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
