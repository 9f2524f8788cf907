"""Gives every replica the whole batch, where nothing else gives what one device gives."""

from typing import Any

import keras

from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.epochs.global_batches import GlobalBatches
from kerasdist.training.hooks import graph_checks
from kerasdist.training.losses import whole_metrics
from kerasdist.training.step import graph_errors, replica_run
from kerasdist.training.step.model_step import ModelStep


class RepeatedBatches:
    """Whether the replicas of a step have their parts of a batch, or all of it.

    Attributes:
        are_on: Whether every replica has the whole batch.
        are_possible: Whether the data of the running call allow it.
    """

    def __init__(self, model: keras.Model, step: ModelStep):
        self._model = model
        self._strategy = model.distribute_strategy
        self._step = step
        self._is_one_worker = peers.count(self._strategy) == 1
        self.are_on = False
        self.are_possible = False

    def see(self, data: Any) -> None:
        """Looks at the data of a call; warns if steps that need whole batches have them no longer.

        Args:
            data: `GlobalBatches`, or an iterator over batches.
        """
        self.are_possible = self._is_one_worker or _are_of_all_workers(data)
        if self.are_on and not self.are_possible:
            self.switch(on=False)
            warn(
                "Each worker reads its own part of this data, so replicas no longer compute the "
                "whole batch, which the step needs: the weights will be other ones than on one "
                "device. Change the step as an earlier warning says, or give all workers the data."
            )

    def switch(self, *, on: bool) -> None:
        """Gives replicas the whole batch, or their parts, in the steps that are traced next."""
        self.are_on = on
        self.read_metrics()

    def read_metrics(self) -> None:
        """Lets metrics be read as they were counted: each replica's may be of all examples."""
        whole_metrics.read_as_counted(self._model, are_whole=self.are_on)

    def shares_of(self, batch: Any) -> batches.Shares:
        """Returns what each replica has of a batch."""
        divide = batches.whole_for_each if self.are_on else batches.shares_of
        return divide(batch, self._strategy)

    def may_help_after(self, error: Exception) -> bool:
        """Whether a step whose trace has failed may do with a whole batch what it does not now.

        One of several workers must not go on in another way than the others: they fail alike where
        it is the code that fails, and not the number of examples that one of them has.
        """
        are_divided = self._strategy.num_replicas_in_sync > 1 and not self.are_on
        fails_everywhere = self._is_one_worker or isinstance(error, replica_run.OwnConditionError)
        return are_divided and fails_everywhere and self.are_possible

    def warn_of(self, failure: Exception) -> None:
        """Says why replicas have whole batches now.

        Args:
            failure: That of the step with parts of them.
        """
        text = str(failure)
        if not isinstance(failure, replica_run.OwnConditionError):
            step = self._step
            text = graph_errors.describe_failure(
                graph_checks.explained(failure), self._model, step.step, step.first_axes.describe()
            )
        (text,) = replica_run.with_repeated([text], self._strategy)
        warn(text)


def _are_of_all_workers(data: Any) -> bool:
    """Whether each worker has the batches of all workers, and not its own part of them."""
    if not isinstance(data, GlobalBatches):
        return True
    return data.source.next_size is None and not data.source.is_distributed
