r"""Train an image classifier: `python -m models.train --help` lists the flags.

    mkdir -p data
    python -m models.train --model_name=lenet --dataset_name=digits --dataset_dir=data \
        --train_dir=runs/first --batch_size=32 --max_number_of_steps=500 --num_clones=2 \
        --clone_on_cpu --optimizer=momentum

The flags and their defaults are those of slim's trainer; --batch_size is per clone. All flags are
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
import math
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf
from absl import flags

import kerasdist
from kerasdist import callbacks
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
from models.divergence import DivergedError
from models.learning_curve import write_learning_curve
from models.nets import auxiliary
from models.number_flag import NOT_NEGATIVE, SHARE, define_number
from models.train_dir import TrainDir
from models.usage_error import UsageError

_TEST_SPLITS = ("test", "validation")  # The first that the dataset has.


def main(argv: Sequence[str]) -> int:
    """Train as the flags `argv` say and return the exit code, one of docs/clusters.md."""
    return command.run(_train, define_flags=_define_flags, argv=argv, description=__doc__)


def _define_flags(values: flags.FlagValues) -> None:
    def text(name: str, default: str | None, help: str) -> None:
        flags.DEFINE_string(name, default, help, flag_values=values)

    def count(name: str, default: int | None, help: str, at_least: int | None = 1) -> None:
        flags.DEFINE_integer(name, default, help, lower_bound=at_least, flag_values=values)

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
    define_number(
        values, "weight_decay", 0.00004, "L2 of the kernels, in slim's scale.", NOT_NEGATIVE
    )
    define_number(
        values, "label_smoothing", 0.0, "How much of each label all classes share.", SHARE
    )
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
    """Write what the classes are called, and a picture of examples."""
    names = train.label_names[values.labels_offset :]
    labels.write(train_dir.labels, names)
    net = nets.find(values.model_name)
    # Training says which file is broken.
    with contextlib.suppress(*input_pipeline.READ_ERRORS):
        samples.write_picture(
            train,
            preprocessing.find(values.preprocessing_name or net.preprocessing),
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
    run = _fit(
        values,
        model,
        train,
        test,
        train_dir,
        kept,
        global_batch_size=values.batch_size * strategy.num_replicas_in_sync,
    )

    def finish() -> int:
        average = saving.average_among(kept)
        with average.applied(model) if average and run.step else contextlib.nullcontext():
            return _finish(values, model, run, test, train_dir)

    if run.interrupted:
        return finish() if cluster.is_chief else run.exit_code
    # The others wait: to the chief, one that is gone looks like one that crashed.
    with chief_first(strategy, cluster):
        return finish() if cluster.is_chief else run.exit_code


def _check(values: flags.FlagValues, cluster: kerasdist.Cluster) -> TrainDir:
    """Check all that can be checked without reading the data; write nothing."""
    preprocessing.find(values.preprocessing_name or nets.find(values.model_name).preprocessing)
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
    """Return the split to train on and the one to test on, if there is one."""

    def load(split: str) -> datasets.Dataset:
        found = datasets.load(values.dataset_name, split=split, data_dir=values.dataset_dir)
        return input_pipeline.in_the_channels_asked_for(found, values)

    train = load(values.dataset_split_name)
    for split in _TEST_SPLITS:
        if split in train.split_names and not values.dataset_split_name.startswith(split):
            return train, load(split)
    return train, None


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


def _image_size(values: flags.FlagValues) -> int:
    return values.train_image_size or nets.find(values.model_name).image_size


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What `fit` did: values per epoch, the number of global steps, and whether Ctrl-C ended it."""

    history: dict[str, list[float]]
    step: int
    interrupted: bool

    @property
    def exit_code(self) -> int:
        return command.INTERRUPTED if self.interrupted else 0


def _fit(
    values: flags.FlagValues,
    model: keras.Model,
    train: datasets.Dataset,
    test: datasets.Dataset | None,
    train_dir: TrainDir,
    kept: list[keras.callbacks.Callback],
    *,
    global_batch_size: int,
) -> _Run:
    net = nets.find(values.model_name)
    pipeline = {
        "preprocess": preprocessing.find(values.preprocessing_name or net.preprocessing),
        "image_size": _image_size(values),
        "labels_offset": values.labels_offset,
        "global_batch_size": global_batch_size,
        "num_threads": values.num_preprocessing_threads,
        "ignore_other_labels": values.ignore_other_labels,
    }
    last_step = values.max_number_of_steps or sys.maxsize
    steps_per_epoch = math.ceil(train.num_examples / global_batch_size)
    history = keras.callbacks.History()
    tensorboard = _TensorBoard(
        train_dir.path, write_graph=False, update_freq=values.log_every_n_steps
    )
    interrupted = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            batches = input_pipeline.train_batches(train, seed=values.seed, **pipeline)
            model.fit(
                # The data ends at the last step: with a callback, several workers would stop a step
                # later.
                batches.repeat().take(last_step),
                validation_data=input_pipeline.test_batches(test, **pipeline) if test else None,
                epochs=math.ceil(last_step / steps_per_epoch),
                steps_per_epoch=steps_per_epoch,
                callbacks=[history, tensorboard, callbacks.StopOnNonFinite(), *kept],
                shuffle=False,  # The pipeline shuffles; Keras warns about the default.
            )
    except KeyboardInterrupt:
        interrupted = True
    except callbacks.Checkpoint.MismatchError as error:
        raise UsageError(
            f"--train_dir {str(train_dir.path)!r} holds another training. Give its flags again, "
            f"choose another directory, or replace it with --overwrite. {error}"
        ) from error
    except FloatingPointError as error:
        raise DivergedError(error) from error
    except input_pipeline.READ_ERRORS as error:
        told = input_pipeline.unread(error, values, train, test)
        if told is None:
            raise
        raise told from error
    step = int(model.optimizer.iterations.numpy())
    return _Run(history=history.history, step=step, interrupted=interrupted)


class _TensorBoard(keras.callbacks.TensorBoard):
    """Keras' own drops the values of an epoch unless `update_freq` divides its last step."""

    def on_epoch_end(self, epoch, logs=None):
        with tf.summary.record_if(True):
            super().on_epoch_end(epoch, logs)


def _finish(
    values: flags.FlagValues,
    model: keras.Model,
    run: _Run,
    test: datasets.Dataset | None,
    train_dir: TrainDir,
) -> int:
    """Write what there is to write and say what was done; return the exit code."""
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
    if run.interrupted:
        print(f"\nInterrupted: the model as of step {run.step} is saved in {train_dir.model}.")
        return command.INTERRUPTED
    if test:
        accuracy = run.history["val_accuracy"][-1]
        print(f"\nTest accuracy: {accuracy:.4f} ({test.num_examples} examples)")
    print("\nWritten:")
    for name, path in train_dir.files().items():
        print(f"  {name:<15} {path}")
    print("\nNext:")
    print(f"  {shlex.join(_evaluate_command(values, train_dir))}")
    print(f"  {shlex.join([_program('tensorboard'), f'--logdir={train_dir.path}'])}")
    return 0


def _evaluate_command(values: flags.FlagValues, train_dir: TrainDir) -> list[str]:
    words = [_program("python"), "-m", "models.evaluate", f"--checkpoint_path={train_dir.path}"]
    names = ("dataset_name", "dataset_dir", "preprocessing_name", "labels_offset")
    words += [f"--{name}={values[name].value}" for name in names if values[name].present]
    words += [
        f"--{name}" for name in ("ignore_other_labels", "use_grayscale") if values[name].value
    ]
    return words


def _program(name: str) -> str:
    """Return how to call a program of this environment, also where it is not activated."""
    folder = Path(sys.executable).parent
    found = shutil.which(name)
    if found and Path(found).parent == folder:
        return name
    return (
        os.path.relpath(folder / name) if folder.is_relative_to(Path.cwd()) else str(folder / name)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
