"""How the gradients of a worker reach the variables of the parameter servers."""

import contextlib
from collections.abc import Generator

import tensorflow as tf

from kerasdist.training.parameter_servers import local_copies, sharded_variables
from kerasdist.training.parameter_servers.worker_times import WorkerTimes
from kerasdist.training.step import replica_step


class RemoteDelivery:
    """Sends them: small ones in one message for each parameter server; see `LocalDelivery`.

    Args:
        copies: What the step reads in the place of small weights, if it does.
        times: Hears when the gradients are there; None where nobody measures.
    """

    def __init__(
        self,
        copies: local_copies.LocalCopies | None = None,
        times: WorkerTimes | None = None,
    ):
        self._copies, self._times = copies, times
        self._optimizer = None
        self._arrived: dict = {}  # By device, a gradient that has arrived there.

    @contextlib.contextmanager
    def updating(self, optimizer) -> Generator[None]:
        """Traces an update of the variables themselves, not of copies."""
        self._optimizer = optimizer
        try:
            with self._copies.put_back() if self._copies else contextlib.nullcontext():
                yield
        finally:  # The step outlives its trace, whose graph they are of.
            self._optimizer, self._arrived = None, {}

    def apply(self, stock, optimizer, gradients: list, variables: list):
        """Sends the gradients first where nothing else happens to them on the worker."""
        if self._times:
            self._times.end_step(optimizer, gradients, variables)
        is_changed = optimizer.loss_scale_factor or any(
            limit is not None
            for limit in (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
        )
        if is_changed:
            return stock(optimizer, gradients, variables)
        gradients, self._arrived = local_copies.sent(gradients, variables)
        with self._after_arrival_on(optimizer.iterations.value.device):
            return stock(optimizer, gradients, variables)

    def update(self, variable, function, args=(), kwargs=None, group=True):
        """Runs an update of a variable on its parameter server."""

        def on_server(part, *args, **kwargs):
            with self._after_arrival_on(part.device):
                return function(part, *args, **kwargs)

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
        with tf.control_dependencies(None), tf.control_dependencies([self._arrived[device]]):
            yield


def update_in_place(*args, **kwargs):
    """Runs an update in the step of this thread; see `RemoteDelivery.update`."""
    step = replica_step.current()
    assert step is not None
    return step.delivery.update(*args, **kwargs)
