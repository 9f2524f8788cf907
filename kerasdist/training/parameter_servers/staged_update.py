"""Divides the update of synchronous workers: they stage gradients, and the chief does the rest.

A step on a worker comes as far as the sum before all else (see `gradient_aggregation`): what it has
is its part of the sum, and waits on the servers. The chief traces what follows, with the mean of
several batches: callbacks, clipping, the optimizer. It is traced once, and acts once for each
update.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.hooks import divided_values
from kerasdist.training.parameter_servers.contributions import Contributions
from kerasdist.training.parameter_servers.delivery import RemoteDelivery
from kerasdist.training.parameter_servers.local_copies import LocalCopies
from kerasdist.training.replica import replicas
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.replica.replicas import OneDevice, Replica
from kerasdist.training.step import replica_run

# Beside the sums of callbacks, whose names are others.
_NUM_EXAMPLES = "num_examples of kerasdist"


class StagedUpdate:
    """An update that is traced in two halves.

    Args:
        strategy: Our ParameterServerStrategy.
        copies: What steps read in the place of small weights, if they do.

    Attributes:
        contributions: What is staged.
    """

    def __init__(self, strategy: tf.distribute.Strategy, copies: LocalCopies | None = None):
        self._strategy, self._copies = strategy, copies
        self.contributions = Contributions()
        self._key: Any = None  # While a step is traced, like the next.
        self._staged: list = []
        # Of the step that was traced last: what follows the sum, and how it is run.
        self._rest: Callable | None = None
        self._options: Any = None

    def delivery(self) -> LocalDelivery:
        """Returns what stages the gradients of a step that is traced."""
        return _StagedDelivery(self)

    @contextlib.contextmanager
    def staging(self, key: tf.Tensor) -> Generator[list]:
        """Traces a step on a worker.

        Args:
            key: See `Contributions.stage`.

        Yields:
            The operations that have ended when all that comes of the step is staged.

        Raises:
            RuntimeError: The step makes no update.
        """
        self._key, self._staged = key, []
        try:
            yield self._staged
        finally:
            self._key = None
        if not self._staged:
            raise RuntimeError(
                "A train_step makes no update, and synchronous workers over parameter servers need "
                "one in each step. Call `optimizer.apply` with the gradients."
            )

    def stage(self, rest: Callable, gradients: list, variables: list, replica: Replica) -> None:
        """Stages the gradients of the step that is traced; see `LocalDelivery.hand_over`.

        Raises:
            ValueError: The step makes a second update; or its losses have several divisors.
        """
        if self._staged:
            raise ValueError(
                "A train_step makes two updates with `optimizer.apply`, and synchronous workers "
                "over parameter servers make one of each step: the gradients of the second would "
                "have to be those by weights that the first has changed for all. Give all "
                "variables to one `optimizer.apply`, as with a MultiOptimizer, or leave out "
                "`sync_replicas`."
            )
        if self._copies:
            self._copies.put_back()
        sums = {**replica.extra_sums, _NUM_EXAMPLES: replica.num_examples}
        weight = _weight_of(replica)
        self._rest, self._options = rest, replica.options
        self._staged.extend(
            self.contributions.stage(self._key, gradients, variables, weight=weight, sums=sums)
        )

    def make(self, keys: list[tf.Tensor]) -> None:
        """Traces the update of what these keys stand for, on the chief."""
        assert self._rest is not None
        rest, taken = self._rest, self.contributions.take(keys)
        sums = {name: tf.cast(value, tf.float32) for name, value in taken.sums.items()}
        num_examples = tf.cast(taken.sums[_NUM_EXAMPLES], tf.int32)

        def make_replica(seat: replica_run.Seat) -> Replica:
            return OneDevice(
                replica_id=0,
                num_examples=num_examples,
                global_num_examples=num_examples,
                share=1.0,
                keras_state=seat.keras_state,
                options=self._options,
                delivery=_DeliveryOfChief(),
                is_first=True,
                draws_alone=True,
                sums=sums,
            )

        replica_run.on_each(
            self._strategy,
            make_replica,
            lambda replica, _: rest(taken.gradients, replica),
        )


class _StagedDelivery(LocalDelivery):
    """Stages gradients; what follows the sum is not traced on the worker."""

    needs_divisors = True

    def __init__(self, update: StagedUpdate):
        self._update = update

    def hand_over(self, rest: Callable, gradients: list, variables: list, replica: Any) -> None:
        self._update.stage(rest, gradients, variables, replica)


class _DeliveryOfChief(RemoteDelivery):
    """Updates each variable where its gradient is already, on its server."""

    def _send(self, gradients: list, variables: list) -> list:
        sent = []
        for gradient, variable in zip(gradients, variables, strict=True):
            weight = variable_adapter.value_of(variable)
            if gradient is not None and divided_values.is_sharded(weight):
                self._send_pieces(gradient, weight)
            elif gradient is not None:
                parts = [gradient]
                if isinstance(gradient, tf.IndexedSlices):
                    parts = [gradient.values, gradient.indices]
                self._arrived.setdefault(weight.device, []).extend(parts)
            sent.append(gradient)
        return sent


def _weight_of(replica: Replica) -> Any:
    """Returns what the loss of a batch was divided by.

    Raises:
        ValueError: There are several divisors, or there is none.
    """
    divisors = replicas.divisors()
    if not divisors:  # A loss of the program's own counts as a mean over its examples.
        return replica.num_examples
    first, *others = divisors
    if others or first.total is None:
        names = " and ".join(f"by {each.name}" for each in divisors)
        raise ValueError(
            "The mean over the batches of several workers is that of one device where all losses "
            f"of a step are divided by the same. Received: losses divided {names}. Use reduction="
            "'sum_over_batch_size' for all of them, and mask or weigh all or none."
        )
    return first.total
