"""How the gradients of a worker reach the variables of the parameter servers."""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.training.parameter_servers import local_copies, sharded_variables
from kerasdist.training.parameter_servers.ledger import Ledger
from kerasdist.training.parameter_servers.worker_times import WorkerTimes
from kerasdist.training.step import replica_step


class RemoteDelivery:
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
        self._num_updates = 0
        self._arrived: dict = {}  # By device, what says that the gradients have arrived there.
        self._is_due: dict = {}  # By device, in a call that is made again.

    @contextlib.contextmanager
    def updating(self, optimizer) -> Generator[None]:
        """Traces an update of the variables themselves, not of copies."""
        self._optimizer = optimizer
        try:
            with self._copies.put_back() if self._copies else contextlib.nullcontext():
                yield
        finally:  # The step outlives its trace, whose graph they are of.
            self._optimizer, self._arrived = None, {}

    def carry_out(self, update: Callable) -> None:
        """Traces an update, and in a call that is made again one of those that are missing."""
        number, self._num_updates = self._num_updates, self._num_updates + 1
        if self._ledger is None or not self._ledger.is_again:
            update()
            return
        self._is_due = self._ledger.is_due(number)

        def update_missing():
            update()
            # It is added to by the optimizer itself, wherever that is.
            counter = self._optimizer.iterations.value
            is_done = ~self._is_due[counter.device]
            counter.assign_sub(tf.cast(is_done, counter.dtype), read_value=False)

        try:
            tf.cond(tf.reduce_any(list(self._is_due.values())), update_missing, lambda: None)
        finally:
            self._is_due = {}

    def apply(self, stock, optimizer, gradients: list, variables: list):
        """Sends the gradients first where nothing else happens to them on the worker."""
        if self._times:
            self._times.end_step(optimizer, gradients, variables)
        is_changed = optimizer.loss_scale_factor or any(
            limit is not None
            for limit in (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
        )
        note = self._ledger.note(self._num_updates - 1) if self._ledger else None
        computed = [gradient for gradient in gradients if gradient is not None]
        self._arrived, notes = {}, {}
        if not is_changed:
            gradients, self._arrived, notes = local_copies.sent(gradients, variables, note)
        if self._ledger:
            with tf.control_dependencies(computed):
                note = tf.identity(note)
            self._arrived = self._noted(self._ledger, optimizer, variables, notes, note)
        with self._after_arrival_on(optimizer.iterations.value.device):
            return stock(optimizer, gradients, variables)

    def _noted(self, ledger, optimizer, variables, notes, note) -> dict:
        """Notes the update where everything for it has arrived; returns by device what says so."""
        values = [optimizer.iterations.value, *(each.value for each in variables)]
        parts = [part for value in values for part in sharded_variables.parts_of(value)]
        result = {}
        for device in dict.fromkeys(part.device for part in parts):
            # Without what the step waits for on the worker: the gradients do so.
            with tf.control_dependencies(None), tf.control_dependencies(self._arrived.get(device)):
                result[device] = [ledger.write(device, notes.get(device, note))]
        return result

    def update(self, variable, function, args=(), kwargs=None, group=True):
        """Runs an update of a variable on its parameter server."""

        def on_server(part, *args, **kwargs):
            with self._after_arrival_on(part.device):
                if not self._is_due:
                    return function(part, *args, **kwargs)
                return tf.cond(
                    self._is_due[part.device],
                    lambda: _nothing(function(part, *args, **kwargs)),
                    lambda: None,
                )

        return sharded_variables.update(self._optimizer, variable, on_server, args, kwargs, group)

    @contextlib.contextmanager
    def _after_arrival_on(self, device) -> Generator[None]:
        """Lets what is traced inside wait for gradients that have arrived on `device`.

        Like all of a step it would wait for the batch (`replica_step.after`), which is on the
        worker: one more message. Gradients are there when the batch is.
        """
        if device not in self._arrived:
            yield
            return
        with tf.control_dependencies(None), tf.control_dependencies(self._arrived[device]):
            yield


def _nothing(_):
    return None


def update_in_place(*args, **kwargs):
    """Runs an update in the step of this thread; see `RemoteDelivery.update`."""
    step = replica_step.current()
    assert step is not None
    return step.delivery.update(*args, **kwargs)
