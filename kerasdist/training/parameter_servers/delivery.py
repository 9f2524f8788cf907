"""Brings the gradients of a worker to the variables of the parameter servers."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_optimizers, stand_ins, variable_adapter
from kerasdist.training.hooks import divided_values
from kerasdist.training.parameter_servers import local_copies, sharded_variables
from kerasdist.training.parameter_servers.ledger import Ledger
from kerasdist.training.parameter_servers.worker_times import WorkerTimes
from kerasdist.training.replica import graph_facts, replicas
from kerasdist.training.replica.delivery import LocalDelivery

_Optimizer = keras.optimizers.Optimizer


class RemoteDelivery(LocalDelivery):
    """Sends them: small ones in one message for each parameter server; see `LocalDelivery`.

    Args:
        copies: What the step reads in the place of small weights, if it does.
        times: Hears when the gradients are there; None where nobody measures.
        ledger: Notes the update at every parameter server, before it is made there; None in tests.
    """

    def __init__(
        self,
        copies: local_copies.LocalCopies | None = None,
        times: WorkerTimes | None = None,
        ledger: Ledger | None = None,
    ):
        self._copies, self._times, self._ledger = copies, times, ledger
        self._optimizer: Any = None
        self._divided: Any = None  # The optimizer whose gradients others are applying.
        # How many updates were traced, and the number of the one that is.
        self._num_updates = self._number = 0
        self._is_due: dict = {}  # By device, in a call that is made again.
        self._forget()

    @contextlib.contextmanager
    def updating(self, optimizer: _Optimizer) -> Generator[None]:
        """Traces an update of the variables themselves, which what follows it reads, not copies."""
        self._optimizer = optimizer
        if self._copies:
            self._copies.put_back()
        try:
            yield
        finally:  # The step outlives its trace, whose graph they are of.
            self._optimizer = None
            self._forget()

    def _forget(self) -> None:
        self._note: Any = None
        self._is_updating = False  # Since the first update of a weight.
        self._decays: list = []  # Updates before that.
        # Keras' variables that the update of every weight reads, each with what it is before it.
        self._numbers: list[tuple[keras.Variable, tf.Tensor]] = []
        self._clipped: list = []  # Keras' variables whose gradients are sent once they are clipped.
        self._updated: list = []  # The weights, each in its parts.
        self._pieces: dict = {}  # By part of a sharded weight, its gradient that has arrived there.
        self._arrived: dict = {}  # By device, gradients that have arrived there.
        self._notes: dict = {}  # By device, notes that have arrived with them.
        self._written: dict = {}  # By device, what writes the note.
        self._sent: dict = {}  # By tensor, device and graph, what it is there.

    def carry_out(self, update: Callable, *, is_divided: bool = False) -> None:
        """Traces an update, and in a call that is made again one of those that are missing.

        Of one that is divided, any part may be missing: each has a note of its own.
        """
        if not is_divided:
            self._begin_noted()
        try:
            is_due = tf.reduce_any(list(self._is_due.values())) if self._is_due else None
            _update_if(is_due, update)
        finally:
            self._is_due = {}

    def _begin_noted(self) -> None:
        """Begins what one note is for; notes are in the order of what they are for."""
        self._number, self._num_updates = self._num_updates, self._num_updates + 1
        if self._ledger is not None and self._ledger.is_again:
            self._is_due = self._ledger.is_due(self._number)

    def apply(
        self, original: Callable, optimizer: _Optimizer, gradients: list, variables: list
    ) -> Any:
        """Sends the gradients first where nothing happens to them on the worker; see `clip`."""
        if keras_optimizers.divides(optimizer):
            return self._divide(original, optimizer, gradients, variables)
        sharded_variables.check_optimizer(optimizer, variables)
        if self._times:
            self._times.end_step(optimizer, gradients, variables)
        is_changed = optimizer.loss_scale_factor or any(
            limit is not None
            for limit in (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
        )
        self._forget()
        note = self._note = self._ledger.note(self._number) if self._ledger else None
        computed = [gradient for gradient in gradients if gradient is not None]
        if is_changed:
            pairs = zip(gradients, variables, strict=True)
            self._clipped = [variable for gradient, variable in pairs if gradient is not None]
        else:
            gradients = self._send(gradients, variables)
        counter = keras_optimizers.counter_of(optimizer).value
        with self._after_arrival_on(counter.device):
            shared = keras_optimizers.numbers_of(optimizer)
            self._numbers = [(each, _read_in_place(each.value)) for each in shared]
            if self._ledger:
                with tf.control_dependencies(computed):
                    self._note = tf.identity(note)
                weights = map(variable_adapter.value_of, variables)
                self._updated = list(itertools.chain(*map(divided_values.parts_of, weights)))
            self._optimizer = optimizer
            with _without_overwriting(optimizer, gradients, variables) as overwriting:
                result = original(optimizer, gradients, variables)
                self._begin_updating()  # No weight may have been updated.
            for change, changed, is_of_parts in overwriting:
                if is_of_parts:
                    self.change(change, changed)
                else:
                    change(optimizer, changed)
            return result

    def _divide(
        self, original: Callable, optimizer: _Optimizer, gradients: list, variables: list
    ) -> None:
        """Lets those inside an optimizer apply its gradients, and then counts the update.

        Each of them is carried out by itself, and so is the count, with what callbacks do next.
        """
        if self._times:
            self._times.end_step(optimizer, gradients, variables)
        self._divided = optimizer
        try:
            original(optimizer, gradients, variables)
        finally:
            self._divided = None
        self._forget()
        self._begin_noted()
        self._note = self._ledger.note(self._number) if self._ledger else None
        self._optimizer, self._is_updating = optimizer, True
        self.add_in_place(keras_optimizers.counter_of(optimizer), 1)

    def clip(self, original: Callable, optimizer: _Optimizer, gradients: list) -> list:
        """Sends gradients that the optimizer scales or clips on the worker, once it has."""
        clipped = original(optimizer, gradients)
        if len(clipped) != len(self._clipped):  # All are sent; or Keras leaves some out.
            return clipped
        return self._send(clipped, self._clipped)

    def _send(self, gradients: list, variables: list) -> list:
        sent, self._arrived, self._notes = local_copies.sent(gradients, variables, self._note)
        for gradient, variable in zip(gradients, variables, strict=True):
            weight = variable_adapter.value_of(variable)
            if gradient is not None and divided_values.is_sharded(weight):
                self._send_pieces(gradient, weight)
        return sent

    def _send_pieces(self, gradient: tf.Tensor | tf.IndexedSlices, variable: Any) -> None:
        pieces = sharded_variables.divided_argument(gradient, variable)
        for part, piece in zip(variable.variables, pieces, strict=True):
            self._pieces[part.ref()], tensors = local_copies.sent_to(part.device, piece)
            self._arrived.setdefault(part.device, []).extend(tensors)

    def update(
        self,
        variable: Any,
        function: Callable,
        args: Sequence = (),
        kwargs: dict | None = None,
        group: bool = True,
    ) -> Any:
        """Runs an update of a variable on its parameter server; `group` makes no difference.

        One without a gradient, which is weight decay, waits for the first that has one: a number
        that is assigned to before is sent with all that a note waits for.
        """
        run = functools.partial(self._update, variable, function, args, kwargs)
        if not args and not self._is_updating:
            self._decays.append(run)
            return None
        self._begin_updating()
        return run()

    def _begin_updating(self) -> None:
        self._is_updating = True
        decays, self._decays = self._decays, []
        for decay in decays:
            decay()

    def _update(
        self, variable: Any, function: Callable, args: Sequence, kwargs: dict | None
    ) -> Any:
        def on_server(part: tf.Variable, *args: Any, **kwargs: Any) -> None:
            device = part.device
            gradients = [self._pieces.get(part.ref(), each) for each in args[:1]]
            settings = [self._at(device, each) for each in args[1:]]
            update = functools.partial(function, part, *gradients, *settings, **kwargs)
            with self._numbers_at(device):
                self._update_on(device, update, settings)

        return sharded_variables.update(self._optimizer, variable, on_server, args, kwargs)

    def add_in_place(self, variable: keras.Variable, value: Any) -> None:
        """Adds to a variable where it lives; that of the updates together with them."""
        if self._divided and variable is keras_optimizers.counter_of(self._divided):
            return
        add = functools.partial(variable_adapter.add_in_place, variable, value)
        if self._note is None or variable is not keras_optimizers.counter_of(self._optimizer):
            add()
            return
        self._update_on(variable.value.device, add)

    def assign_number(
        self, original: Callable, optimizer: _Optimizer, variable: Any, value: Any
    ) -> None:
        """Assigns to what an optimizer has; to a number before the updates that read it.

        They read what it becomes from what was sent to them, like the numbers that stay.
        """
        is_before = not self._is_updating and self._note is not None
        if not is_before or variable.shape != () or not isinstance(variable, keras.Variable):
            original(optimizer, variable, value)
            return
        device = variable.value.device
        value = tf.cast(value, variable.dtype)
        self._unshare(variable)
        self._numbers = [*self._numbers, (variable, value)]
        assign = functools.partial(original, optimizer, variable, self._at(device, value))
        self._update_on(device, assign)

    def change(self, function: Callable, variables: list) -> None:
        """Calls `function(optimizer, [variable])` for each variable, on its parameter server."""

        def on_server(part: tf.Variable, variable: Any) -> None:
            held = [variable] if isinstance(variable, keras.Variable) else []
            with stand_ins.standing_in(held, [part]):
                function(self._optimizer, [variable])

        for variable in variables:
            weight = variable_adapter.value_of(variable)
            self.update(weight, functools.partial(on_server, variable=variable))

    def _update_on(self, device: str, update: Callable, settings: Sequence = ()) -> None:
        """Traces an update that is noted on `device`, and is made there if it is due."""
        with self._noted_on(device, settings):
            _update_if(self._is_due[device] if self._is_due else None, update)

    @contextlib.contextmanager
    def _noted_on(self, device: str, settings: Sequence) -> Generator[None]:
        """Lets what is traced inside wait until all is there and noted that is needed on `device`.

        Nothing is between the note and the updates that could get lost, as a message could with
        the task that sends it.
        """
        if self._ledger is None or self._note is None:
            with self._after_arrival_on(device):
                yield
            return
        if device not in self._written:
            there = [
                *self._arrived.get(device, []),
                *filter(tf.is_tensor, settings),
                *(self._at(device, value) for _, value in self._numbers),
                *self._uses_on(device),
            ]
            note = self._notes.get(device)
            with tf.control_dependencies(None), tf.control_dependencies(there):
                note = self._note if note is None else note
                self._written[device] = self._ledger.write(device, note)
        with tf.control_dependencies(None), tf.control_dependencies([self._written[device]]):
            yield

    def _uses_on(self, device: str) -> list[tf.Operation]:
        """Returns what has read the weights of `device`, which an update waits for."""
        parts = [part for part in self._updated if part.device == device]
        return list(itertools.chain(*map(graph_facts.uses_of, parts)))

    def _numbers_at(self, device: str) -> contextlib.AbstractContextManager:
        """Lets the optimizer read its own numbers from what was sent to `device`.

        Until it changes one itself, such as a learning rate that decays with each weight.
        """
        variables = [variable for variable, _ in self._numbers]
        values = [self._at(device, value) for _, value in self._numbers]
        for variable, value in zip(variables, values, strict=True):
            stand_ins.give_way(value, variable, functools.partial(self._unshare, variable))
        return stand_ins.standing_in(variables, values)

    def _unshare(self, variable: keras.Variable) -> None:
        self._numbers = [pair for pair in self._numbers if pair[0] is not variable]

    def _at(self, device: str, tensor: Any) -> Any:
        """Returns a tensor on `device`, where it is sent once."""
        if not isinstance(tensor, tf.Tensor):
            return tensor
        # In the branch of a condition, as of an accumulation, for that branch alone.
        key = tensor.ref(), device, id(tf.compat.v1.get_default_graph())
        if key not in self._sent:
            with tf.device(device), tf.control_dependencies(None):
                self._sent[key] = tf.identity(tensor)
        return self._sent[key]

    @contextlib.contextmanager
    def _after_arrival_on(self, device: str) -> Generator[None]:
        """Lets what is traced inside wait for gradients that have arrived on `device`.

        Like all of a step it would wait for the batch (`replica_run.after`), which is on the
        worker: one more message. Gradients are there when the batch is.
        """
        if device not in self._arrived:
            yield
            return
        with tf.control_dependencies(None), tf.control_dependencies(self._arrived[device]):
            yield


def _read_in_place(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):  # `read_value` copies, which would be where the step runs.
        return variable.read_value()


@contextlib.contextmanager
def _without_overwriting(
    optimizer: Any, gradients: list, variables: list
) -> Generator[list[tuple]]:
    """Leaves out what Keras does to weights last: averages in their place, and their constraints.

    It reads them on the worker and assigns to them, which takes back what others make of them
    meanwhile.

    Yields:
        What does so afterwards, in this order: a function of the optimizer and variables, these
        variables, and whether it is for each part by itself. Weights that are divided need to be
        together for a constraint.
    """
    constraints = [
        (variable, variable.constraint)
        for gradient, variable in zip(gradients, variables, strict=True)
        if gradient is not None
        and isinstance(variable, keras.Variable)  # TensorFlow's keeps its constraint.
        and variable.constraint is not None
    ]
    frequency = optimizer.ema_overwrite_frequency
    changes: list[tuple] = []
    if optimizer.use_ema and frequency:
        overwrite = functools.partial(keras_optimizers.overwrite_each, frequency)
        changes.append((overwrite, keras_optimizers.variables_trained_by(optimizer), True))
    for variable, constraint in constraints:
        is_of_parts = not divided_values.is_sharded(variable.value)
        changes.append((functools.partial(_constrain, constraint), [variable], is_of_parts))
        variable.constraint = None
    optimizer.ema_overwrite_frequency = None
    try:
        yield changes
    finally:
        optimizer.ema_overwrite_frequency = frequency
        for variable, constraint in constraints:
            variable.constraint = constraint


def _constrain(constraint: Callable, _: _Optimizer, variables: list) -> None:
    for variable in variables:
        variable.assign(constraint(variable))


def _update_if(is_due: tf.Tensor | None, update: Callable) -> None:
    """Traces `update()` where it is due; None for always."""

    def update_and_return_nothing() -> None:
        update()

    if is_due is None:
        update()
    else:
        tf.cond(is_due, update_and_return_nothing, lambda: None)


def update_in_place(*args: Any, **kwargs: Any) -> Any:
    """Runs an update in the step of this thread; see `RemoteDelivery.update`."""
    step = replicas.current()
    assert step is not None
    return step.delivery.update(*args, **kwargs)
