"""Lets XLA compile what each of several replicas computes by itself.

XLA cannot compile a function in which replicas meet. In Keras' own steps they meet behind the
forward pass, the losses and the gradient: where the optimizer gets the gradients, and where metrics
see all examples. So a replica traces its step in a function of its own that XLA compiles, up to
there. The calls of the optimizer and of `compute_metrics` are put off, and made in the graph of the
step with what came of that function: the sums over replicas, the callbacks, the update and the
metrics are as without XLA.

Seeds that replicas share come into the function, and so do shares and numbers of examples. Where
replicas are to meet within it after all, as for the sum of a mask, the step is traced again without
XLA.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_layers, keras_losses
from kerasdist.support.replaced_method import method_replaced
from kerasdist.training.context import peers
from kerasdist.training.gradients import sliced_gradients
from kerasdist.training.hooks import update_callback, xla
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.replica import graph_facts, replicas
from kerasdist.training.replica.notes import LossNotes, UpdateNotes
from kerasdist.training.replica.replicas import CannotMeetError, Part

_MESSAGES = ("Collective", "Nccl")  # How the types of operations begin in which replicas meet.


class CompiledPart:
    """The part of a model's steps that XLA compiles on each of several replicas.

    Args:
        model: Their model.
        step: Its train_step or test_step.
        callbacks: The update callbacks of the step.
    """

    def __init__(self, model: keras.Model, step: Callable, callbacks: tuple = ()):
        self._model = model
        self._reason = xla.reason_against(model, step) if model.jit_compile else None
        is_whole = model.distribute_strategy.num_replicas_in_sync == 1
        self._is_possible = bool(model.jit_compile) and self._reason is None and not is_whole
        # What they look at has to be in the graph of the step.
        self._lookers = update_callback.overriding("looks_within", callbacks)
        self._is_on = self._is_used = False
        self.tell()

    def tell(self) -> None:
        """Says why XLA compiles nothing, once."""
        reason, self._reason = self._reason, None
        if reason is not None:
            xla.tell_that_off(self._model, reason)

    @contextlib.contextmanager
    def tracing(self, *, is_unobserved: bool) -> Generator[None]:
        """Is entered around the trace of a step.

        Args:
            is_unobserved: Whether no callback looks at the step.
        """
        is_seen = bool(self._lookers) and not is_unobserved
        can_be_traced = not tf.executing_eagerly() and _is_ready(self._model)
        self._is_on, self._is_used = self._is_possible and can_be_traced and not is_seen, False
        try:
            yield
        finally:
            self._is_on = False

    def gives_up(self, error: Exception) -> bool:
        """Whether a step is to be traced again, without XLA, after an error.

        Args:
            error: What the trace has raised. Where it is the program's own, the next trace does so.
        """
        if not self._is_used:
            return False
        self._is_possible = self._is_used = False
        self._reason = _described(error)
        return True

    def run(self, step: Callable, data: Any) -> Any:
        """Runs a step on the replica of this thread; returns what it returns.

        Args:
            step: The train_step or test_step.
            data: Of this replica.
        """
        replica = replicas.current()
        if not self._is_on:
            return step(data)
        if not isinstance(replica, Part):
            self._is_possible, self._reason = False, "each of them computes the whole batch"
            return step(data)
        self._is_used = True
        cut = _Cut(self._model, replica)
        compiled = graph_function(functools.partial(cut.trace, step, data), jit_compile=True)
        with replicas.entered(None):  # It is no function of the program's, to be taken apart.
            outputs = compiled()
        return cut.go_on(outputs)


def _described(error: Exception) -> str:
    met = None
    each: BaseException | None = error
    while each is not None:  # Keras wraps what a layer raises.
        met = each if isinstance(each, CannotMeetError) else met
        each = each.__cause__ or each.__context__
    told = str(met or error).strip().partition("\n")[0]
    return told if met else f"its trace ends with {type(error).__name__} ({told})"


def _is_ready(model: keras.Model) -> bool:
    """Whether a step makes no variable: those of several replicas are made outside of functions."""
    losses = custom_parts.compiled_losses_of(model)
    return keras_layers.is_built(model) and (losses is None or losses.built)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Update:
    """A call of an optimizer that is put off.

    Attributes:
        optimizer: The optimizer.
        variables: What it is to update, or None.
        have_common_rows: By gradient, see `sliced_gradients.taken_apart`; None for no gradient.
    """

    optimizer: Any
    variables: list | None
    have_common_rows: list


class _Cut:
    """The step of one replica, cut where replicas may meet.

    Args:
        model: Its model.
        replica: The replica.
    """

    def __init__(self, model: keras.Model, replica: Part):
        self._model, self._replica = model, replica
        self._updates: list[_Update] = []
        self._metrics_calls: list[tuple] = []
        self._losses = LossNotes()
        # What is computed within and used behind, and where in it the function's outputs belong.
        self._structure: Any = None
        self._positions: list[int] = []

    def trace(self, step: Callable, data: Any) -> list:
        """Traces the step up to the cut, and returns the tensors that are used behind it.

        What it takes of the data, and of all else, it takes from the graph around.
        """
        graph: Any = tf.compat.v1.get_default_graph()
        updates = UpdateNotes(deferred=[])
        self._updates, self._metrics_calls, self._losses = [], [], LossNotes()
        inner = dataclasses.replace(
            self._replica, compiled_graph=graph, losses=self._losses, updates=updates
        )
        put_off = method_replaced(self._model, "compute_metrics", self._put_off_metrics)
        with replicas.entered(inner), put_off:
            step(data)
            self._structure = [
                [self._take_apart(*call) for call in updates.deferred or ()],
                [(call, _masks_of(call)) for call in self._metrics_calls],
                self._losses.means,
            ]
        _check(graph)
        leaves = tf.nest.flatten(self._structure)
        self._positions = [index for index, leaf in enumerate(leaves) if _is_of(leaf, graph)]
        return [leaves[position] for position in self._positions]

    def _put_off_metrics(self, compute_metrics: Callable, *args: Any, **kwargs: Any) -> dict:
        self._metrics_calls.append((args, kwargs))
        return {}

    def _take_apart(self, optimizer: Any, gradients: list, variables: list | None) -> list:
        taken = [
            None if each is None else sliced_gradients.taken_apart(each, self._replica.dependence)
            for each in gradients
        ]
        flags = [None if each is None else each[1] for each in taken]
        self._updates.append(
            _Update(optimizer=optimizer, variables=variables, have_common_rows=flags)
        )
        return [None if each is None else each[0] for each in taken]

    def go_on(self, outputs: list) -> Any:
        """Traces what follows in the graph of the step; returns what the step returns.

        Args:
            outputs: Of the function that was traced.
        """
        leaves = tf.nest.flatten(self._structure)
        for position, output in zip(self._positions, outputs, strict=True):
            leaves[position] = output
        gradients, metrics_calls, means = tf.nest.pack_sequence_as(self._structure, leaves)
        notes = self._replica.losses
        notes.means.update(means)
        notes.divisors.extend(
            dataclasses.replace(each, loss=None) for each in self._losses.divisors
        )
        for update, given in zip(self._updates, gradients, strict=True):
            update.optimizer.apply(self._whole(update, given), update.variables)
        returned: Any = {}
        for (args, kwargs), masks in metrics_calls:
            _set_masks((args, kwargs), masks)
            returned = self._model.compute_metrics(*args, **kwargs)
        return returned

    def _whole(self, update: _Update, gradients: list) -> list:
        return [
            None
            if pieces is None
            else sliced_gradients.put_together(pieces, flags, self._replica.dependence)
            for pieces, flags in zip(gradients, update.have_common_rows, strict=True)
        ]


def _masks_of(arguments: Any) -> list:
    return [keras_losses.mask_of(leaf) for leaf in tf.nest.flatten(arguments)]


def _set_masks(arguments: Any, masks: list) -> None:
    for leaf, mask in zip(tf.nest.flatten(arguments), masks, strict=True):
        if mask is not None and keras_losses.mask_of(leaf) is None:
            keras_losses.set_mask(leaf, mask)


def _is_of(leaf: Any, graph: Any) -> bool:
    """Whether a leaf of a structure is a tensor of a graph, of whatever kind."""
    return any(tensor.graph is graph for tensor in graph_facts.symbolic_in(leaf))


def _check(graph: Any) -> None:
    """Checks that XLA can compile a function for the device of this replica.

    Raises:
        CannotMeetError: It sends messages, or has variables that are elsewhere.
    """
    for operation in graph.get_operations():
        if operation.type.startswith(_MESSAGES):
            raise CannotMeetError(f"the replicas meet in its operation {operation.type}")
    strategy = tf.distribute.get_strategy()
    position = peers.replica_id() - peers.local_replicas(strategy)[0]
    own = _place_of(strategy.extended.worker_devices[position])
    for variable in graph.variables:
        if variable.device and _place_of(variable.device) != own:
            raise CannotMeetError(f"the variable '{variable.name}' is on another device")


def _place_of(device: str) -> tuple:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index
