r"""Train an image classifier: `python -m models.train --help` lists the flags.

    mkdir -p data
    python -m models.train --model_name=lenet --dataset_name=digits --dataset_dir=data \
        --train_dir=runs/first --batch_size=32 --max_number_of_steps=500 --num_clones=2 \
        --clone_on_cpu --optimizer=momentum

The flags are those of slim's trainer, and so are their defaults, but for these: --train_dir and
--dataset_name must be given, and summaries and lines about the loss come where
--save_summaries_secs and --log_every_n_steps are given. --batch_size is per clone. All flags are
checked before anything is written. Ctrl-C ends training early and keeps the model trained so far. A
run that was killed goes on when the same command is given again.

Two workers on this machine, each with the clones that the flags say:

    python -m kerasdist launch --workers 2 -- python -m models.train ...

With two parameter servers, whose workers train asynchronously beside a chief; --batch_size is that
of one worker's step, and --max_number_of_steps counts the steps of all workers:

    python -m kerasdist launch --workers 2 --ps 2 -- python -m models.train ...

On many machines the same command runs on each; TF_CONFIG, Slurm or --worker_hosts and --task_id say
which task it is. The chief alone writes and prints. Ctrl-C ends the workers without a model.
"""

import contextlib
import functools
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
from absl import flags

import kerasdist
from models import (
    command,
    datasets,
    deployment,
    fine_tuning,
    gradient_flags,
    input_pipeline,
    labels,
    learning_rates,
    nets,
    optimizers,
    preprocessing,
    samples,
    saving,
)
from models.chief_first import chief_first
from models.datasets import splits
from models.fit import Run, fit
from models.learning_curve import write_learning_curve
from models.nets import auxiliary
from models.train_dir import TrainDir
from models.typed_flags import NOT_NEGATIVE, SHARE, define_count, define_number, define_text
from models.usage_error import UsageError

_TEST_SPLITS = ("test", "validation")  # The first that the dataset has.


def main(argv: Sequence[str]) -> int:
    """Trains as the flags `argv` say and returns the exit code, one of docs/clusters.md."""
    return command.run(_train, define_flags=_define_flags, argv=argv, description=__doc__)


def _define_flags(values: flags.FlagValues) -> None:
    text = functools.partial(define_text, values)
    count = functools.partial(define_count, values)
    number = functools.partial(define_number, values)

    text("train_dir", None, "Where the model, its curve and its event files go.")
    flags.DEFINE_bool("overwrite", False, "Replace the results in --train_dir.", flag_values=values)
    text("model_name", "inception_v3", f"One of {', '.join(sorted(nets.NETS))}.")
    count("train_image_size", None, "Height and width in pixels. Default: as the net wants it.")
    count("max_number_of_steps", None, "Global steps. Default: train until Ctrl-C (one process).")
    count(
        "log_every_n_steps",
        10,
        "Global steps between two points in the event files and, where it is given, two lines.",
    )
    count("seed", 0, "Draws weights, batches and distortions.", at_least=0)
    number("weight_decay", 0.00004, "L2 of the kernels, in slim's scale.", NOT_NEGATIVE)
    number("label_smoothing", 0.0, "How much of each label all classes share.", SHARE)
    deployment.define_flags(values)
    input_pipeline.define_flags(values, split="train", batch_size=32)
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
    plan = kerasdist.plan_training(
        model,
        global_batch_size=values.batch_size * strategy.num_replicas_in_sync,
        num_examples=train.num_examples,
        files=train_dir.files(),
    )
    if not cluster.is_chief:
        kerasdist.barrier("training directory")
        return _train_and_finish(values, cluster, model, train, test, train_dir)
    with train_dir.taken():
        train_dir.clear(overwrite=values.overwrite)
        print(plan, flush=True)
        kerasdist.barrier("training directory")
        return _train_and_finish(values, cluster, model, train, test, train_dir)


def _describe_data(values: flags.FlagValues, train: datasets.Dataset, train_dir: TrainDir) -> None:
    """Writes what the classes are called, and a picture of examples."""
    names = train.label_names[values.labels_offset :]
    labels.write(train_dir.labels, names)
    # Training says which file is broken.
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


def _train_and_finish(
    values: flags.FlagValues,
    cluster: kerasdist.Cluster,
    model: keras.Model,
    train: datasets.Dataset,
    test: datasets.Dataset | None,
    train_dir: TrainDir,
) -> int:
    strategy = model.distribute_strategy
    fine_tuning.start(values, model, train_dir)
    kept = [
        *fine_tuning.build(values, model),
        *gradient_flags.build(values, model),
        *saving.build(values, train_dir),
    ]
    if cluster.is_chief:
        # Once `fit` has begun: it refuses to go on with another training, of which all is kept.
        describe = functools.partial(_describe_data, values, train, train_dir)
        kept.append(keras.callbacks.LambdaCallback(on_train_begin=lambda logs: describe()))
    pipeline = _pipeline(values, values.batch_size * strategy.num_replicas_in_sync)
    run = fit(values, model, train, test, pipeline=pipeline, train_dir=train_dir, kept=kept)

    def finish() -> int:
        average = saving.average_among(kept)
        with average.applied(model) if average and run.step else contextlib.nullcontext():
            return _finish(values, model, run, train, test, train_dir)

    if run.interrupted:
        return finish() if cluster.is_chief else run.exit_code
    # The others wait: to the chief, one that is gone looks like one that crashed.
    with chief_first(strategy, cluster):
        return finish() if cluster.is_chief else run.exit_code


def _check(values: flags.FlagValues, cluster: kerasdist.Cluster) -> TrainDir:
    """Checks all that can be checked without reading the data; writes nothing."""
    _preprocess(values)
    _check_can_train(values, cluster)
    optimizers.check(values)
    learning_rates.check(values)
    input_pipeline.check(values)
    if not values.train_dir:
        raise UsageError("--train_dir is missing: where the model goes, such as runs/first.")
    if "://" in values.train_dir:
        raise UsageError(
            f"--train_dir {values.train_dir!r} must be a folder that this machine has. Mount the "
            "storage, or copy the run there when it is done."
        )
    train_dir = TrainDir(Path(values.train_dir))
    if cluster.is_chief:  # The others need not even see it.
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
            "--max_number_of_steps is missing: several workers train for so many steps, since "
            "Ctrl-C ends them without a model."
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
        )
    except ValueError as error:
        raise UsageError(
            f"--model_name {values.model_name!r} cannot take images of {image_size} x {image_size} "
            f"pixels; change --train_image_size. {error}"
        ) from error
    learning_rate = learning_rates.build(
        values,
        num_examples=train.num_examples,
        # Beside parameter servers, a step is one worker's.
        num_workers=1 if cluster.num_ps else cluster.num_workers,
    )
    model.compile(
        optimizer=optimizers.build(values, learning_rate=learning_rate),
        loss=keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=values.label_smoothing
        ),
        # By the weights of the examples, where there are any.
        weighted_metrics=["accuracy"],
    )
    return model


def _pipeline(values: flags.FlagValues, global_batch_size: int) -> dict[str, Any]:
    """Returns how examples become batches: arguments of `input_pipeline.test_batches`."""
    return {
        "preprocess": _preprocess(values),
        "image_size": _image_size(values),
        "labels_offset": values.labels_offset,
        "global_batch_size": global_batch_size,
        "num_threads": values.num_preprocessing_threads,
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
    """Writes what there is to write and says what was done; returns the exit code."""
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
            print(f"The same command goes on from step {train_dir.newest_step}.")
    else:
        if test and split:
            accuracy = run.history["val_accuracy"][-1]
            print(f"\n{split.title()} accuracy: {accuracy:.4f} ({test.num_examples} examples)")
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
    """Returns how to measure the model, on the split trained on where there is no other."""
    words = [_program("python"), "-m", "models.evaluate", f"--checkpoint_path={train_dir.path}"]
    names = ("dataset_name", "dataset_dir", "preprocessing_name", "labels_offset")
    words += [f"--{name}={values[name].value}" for name in names if values[name].present]
    if split != "test":  # The one that is measured by default.
        words.append(f"--dataset_split_name={split or values.dataset_split_name}")
    words += [
        f"--{name}" for name in ("ignore_other_labels", "use_grayscale") if values[name].value
    ]
    return words


def _program(name: str) -> str:
    """Returns how to call a program of this environment, also where it is not activated."""
    folder = Path(sys.executable).parent
    found = shutil.which(name)
    if found and Path(found).parent == folder:
        return name
    return (
        os.path.relpath(folder / name) if folder.is_relative_to(Path.cwd()) else str(folder / name)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
