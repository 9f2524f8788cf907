"""Traces the graphs of a step function when they are first run, and again where a step asks."""

import contextlib
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.step.model_step import TraceAgainError
from kerasdist.training.step.repeated_batches import RepeatedBatches

ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)


class StepGraphs:
    """Runs the methods of a step function as graphs, or eagerly in an eager model.

    A step that cannot be traced with a part of the batch is traced with the whole of it.

    Args:
        model: The model of the steps.
        repeated: What the replicas have of a batch; changed after such a failure.
        expect_trace: Called before a graph is made, which takes long.
    """

    def __init__(
        self, model: keras.Model, repeated: RepeatedBatches, *, expect_trace: Callable[[], None]
    ):
        self._model = model
        self._repeated = repeated
        self._expect_trace = expect_trace
        # By the method, whether its steps are unobserved, and whether they have whole batches.
        self._graphs: dict = {}
        self._known: dict[tuple, _KnownCall] = {}  # By the same.
        self._is_tracing = False  # Still, where a trace has failed.
        self._failure: Exception | None = None  # A trace with parts has raised it.

    def clear(self) -> None:
        """Forgets what has been traced: the steps are computed in another way."""
        self._graphs.clear()
        self._known.clear()

    def run(self, method: types.MethodType, *inputs: Any, is_unobserved: bool, **arguments: Any):
        """Calls a method with some inputs, as a graph if the model is not eager.

        Args:
            method: What to run, with tensors, iterators and structures of them.
            *inputs: Its arguments.
            is_unobserved: Whether its steps are; such have graphs of their own.
            **arguments: Further ones of `tf.function`.
        """
        if self._model.run_eagerly:
            return method(*inputs)
        known = self._known.get(self._key(method, is_unobserved))
        if known is not None and known.is_for(inputs) and not tf.config.functions_run_eagerly():
            return known(inputs)
        result = self._with_graph(
            lambda graph: graph(*inputs), method, is_unobserved=is_unobserved, **arguments
        )
        self.tell_failure()
        key = self._key(method, is_unobserved)
        self._known.pop(key, None)
        if _KnownCall.is_possible(inputs):
            self._known[key] = _KnownCall(self._graphs[key], inputs[0])
        return result

    def _key(self, method: types.MethodType, is_unobserved: bool) -> tuple:
        return method.__name__, is_unobserved, self._repeated.are_on

    def trace(
        self, method: types.MethodType, *inputs: Any, is_unobserved: bool, **arguments: Any
    ) -> None:
        """Makes the graph that `run` runs with the same arguments, and variables with it.

        It does not warn where it had to trace the step with the whole batch; see `tell_failure`.
        """
        self._with_graph(
            lambda graph: graph.get_concrete_function(*inputs),
            method,
            is_unobserved=is_unobserved,
            **arguments,
        )

    def _with_graph(
        self, use: Callable, method: types.MethodType, *, is_unobserved: bool, **arguments: Any
    ):
        """Returns what `use` makes of a method's graph."""
        make = functools.partial(graph_function, method, **arguments)
        self._is_tracing = False  # An earlier call may have ended in a trace.
        failure: Exception | None = None  # What a trace with parts of the batch has raised.
        is_again = False
        while True:
            key = self._key(method, is_unobserved)
            if is_again or key not in self._graphs:
                self._expect_trace()
                self._graphs[key] = make()
                self._known.pop(key, None)
            try:
                result = use(self._graphs[key])
                break
            except TraceAgainError:
                is_again = True
            except Exception as error:
                if failure is not None and self._is_tracing:  # The whole batch fails, too.
                    self._repeated.switch(on=False)
                    raise failure from None
                # Nothing of a step has run where it is still being traced.
                is_hopeless = not self._is_tracing or not self._repeated.may_help_after(error)
                if failure is not None or is_hopeless:
                    raise
                failure = error
                self._repeated.switch(on=True)
        self._failure = failure or self._failure
        return result

    def tell_failure(self, *, is_told: bool = False) -> None:
        """Warns if a trace has failed with parts of the batch, and if nobody has done so.

        Args:
            is_told: Whether a check of the step has just said so.
        """
        failure, self._failure = self._failure, None
        if failure is not None and not is_told:
            self._repeated.warn_of(failure)

    @contextlib.contextmanager
    def tracing(self):
        """Notes that a step is traced inside, and that it failed there if it does."""
        self._is_tracing = not tf.executing_eagerly()
        yield
        self._is_tracing = False


class _KnownCall:
    """Calls of a graph with an iterator that it has been called with before.

    TensorFlow would look in each call for a trace that fits, which takes as long as a hundred
    operations.

    Args:
        graph: A `tf.function`.
        iterator: Its first argument; kept as long as it lives.
    """

    def __init__(self, graph: Any, iterator: Any):
        self._graph, self._iterator = graph, weakref.ref(iterator)
        self._trace: Callable | None = None

    @staticmethod
    def is_possible(inputs: tuple) -> bool:
        """Whether a trace with these arguments fits all that has the same iterator."""
        first, *others = inputs
        return isinstance(first, ITERATORS) and all(isinstance(each, tf.Tensor) for each in others)

    def is_for(self, inputs: tuple) -> bool:
        """Whether it has been called with such arguments before."""
        return self._iterator() is inputs[0] and self.is_possible(inputs)

    def __call__(self, inputs: tuple):
        if self._trace is None:
            self._trace = self._graph.get_concrete_function(*inputs)
        return self._trace(*inputs)
