"""Lets asynchronous workers compute the batches of `predict`."""

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import coordinator_adapter
from kerasdist.training.context import deployment, peers
from kerasdist.training.data import batches
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.parameter_servers import abandonment
from kerasdist.training.parameter_servers.epoch_iterator import most_running
from kerasdist.training.step import variable_creation
from kerasdist.training.step.predict_function import joined


class WorkerPredictFunction:
    """Sends batches to the workers of a ParameterServerStrategy, and returns before they are done.

    The chief reads the data, whichever worker is free predicts, and the outputs keep their order:
    `predict` joins them when it has sent all.

    Args:
        model: A model of a ParameterServerStrategy of ours.
    """

    def __init__(self, model: keras.Model):
        strategy = model.distribute_strategy
        self._strategy = strategy
        remote = deployment.remote_workers(strategy)
        self._coordinator, self._watch = remote.coordinator, remote.watch
        self._max_running = most_running(peers.num_workers(strategy))
        self._running: list[Prediction] = []
        self._abandoned = functools.partial(
            abandonment.abandoned_after_errors, self._coordinator, self._running
        )

        def run(batch: Any) -> Any:
            with variable_creation.made_at_once(strategy):
                return strategy.run(model.predict_step, args=(batch,))

        self._run = graph_function(run, reduce_retracing=True)

    def restart(self) -> None:
        """Forgets what an earlier `predict` has not waited for."""
        self._running.clear()

    def __call__(self, data: list) -> Any:
        """Returns the outputs of a list of batches as one structure of `Output`s."""
        with self._abandoned():
            outputs = [
                self._schedule(batches.as_tensors(batches.without_optionals(batch)))
                for batch in data
            ]
        return outputs[0] if len(outputs) == 1 else joined(*outputs)

    def _schedule(self, batch: Any) -> Any:
        if len(self._running) >= self._max_running:
            _ = self._running.pop(0).arrays
        with coordinator_adapter.traced_for_workers(self._strategy):
            function = self._run.get_concrete_function(batch)

        def schedule() -> Any:
            return self._coordinator.schedule(self._run, args=(batch,))

        outputs = function.structured_outputs
        if not all(isinstance(output, tf.Tensor) for output in tf.nest.flatten(outputs)):
            return schedule().get()  # Ragged or sparse: no array.
        prediction = Prediction(schedule, self._watch, self._abandoned)
        self._running.append(prediction)
        positions = itertools.count()

        def of_worker(spec: tf.TensorSpec) -> Any:
            output = Output(prediction, next(positions))
            # Keras stacks scalars only where they are TensorFlow's: such a model waits.
            return output.tensor if spec.shape.rank == 0 else output

        return tf.nest.map_structure(of_worker, outputs)


class Prediction:
    """The outputs of a batch, which a worker computes.

    Args:
        schedule: Lets a worker do so.
        watch: Waits for it.
        abandoned: Returns a context that leaves nothing behind where the step of a worker fails.
    """

    def __init__(
        self,
        schedule: Callable,
        watch: Any,
        abandoned: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ):
        self._schedule = schedule
        self._watch = watch
        self._abandoned = abandoned
        self._result = schedule()

    @functools.cached_property
    def arrays(self) -> list:
        """The arrays, once they are there."""
        with self._abandoned():
            return tf.nest.flatten(self._watch.fetch(self._result, again=self._schedule))


class Output:
    """A tensor that a worker computes: whatever is done with it waits for it, and keeping it not.

    Callbacks do with it what they do with the tensors of plain Keras: `logs["outputs"].shape`,
    `logs["outputs"][0]`, `logs["outputs"] > 0.5`.

    Args:
        prediction: Of the batch.
        position: Of the tensor in its outputs.
    """

    __array_priority__ = 100  # As a tensor's: `array + output` asks the output.
    __hash__ = object.__hash__

    def __init__(self, prediction: Prediction, position: int):
        self._prediction = prediction
        self._position = position

    def numpy(self) -> np.ndarray:
        """Returns the array, once it is there."""
        return self._prediction.arrays[self._position]

    @functools.cached_property
    def tensor(self) -> tf.Tensor:
        """The tensor itself, once it is there."""
        return tf.convert_to_tensor(self.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy().astype(dtype or self.numpy().dtype)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.numpy(), dtype=dtype, name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # TensorFlow and numpy ask for these, to know what this is.
            raise AttributeError(name)
        return getattr(self.tensor, name)

    def __format__(self, spec: str) -> str:
        return format(self.tensor, spec)

    def __reduce__(self) -> tuple:
        return tf.convert_to_tensor, (self.numpy(),)


def _operator(name: str) -> Callable:
    def operate(self, *others: Any) -> Any:
        values = [
            tf.convert_to_tensor(each) if isinstance(each, Output) else each for each in others
        ]
        return getattr(self.tensor, name)(*values)

    return operate


# Python looks for these in the class, and never asks `__getattr__`.
_CONVERSIONS = ("bool", "complex", "float", "index", "int", "iter", "len", "repr", "round", "str")
for _name in (*tf.Tensor.OVERLOADABLE_OPERATORS, *(f"__{name}__" for name in _CONVERSIONS)):
    setattr(Output, _name, _operator(_name))
