"""The user's data, epoch by epoch: what `fit`, `evaluate` and `predict` iterate over."""

import contextlib
import warnings
from collections.abc import Iterator

import keras
import tensorflow as tf

from kerasdist.training import file_shards, keras_adapter, workers
from kerasdist.training.data_source import DataSource


class GlobalBatches:
    """The batches of one call of the train, test or predict function.

    Args:
        source: Of global batches, or of values that are distributed already.
        num_steps: How many batches this call may take.
        is_exact: Whether `num_steps` batches are known to be left.
        restart: Returns a new source of the data where this one may turn out to have ended with the
            epoch before; None where its end is the end of this epoch.
    """

    def __init__(self, source: DataSource, *, num_steps: int, is_exact: bool, restart=None):
        self.source = source
        self.num_steps = num_steps
        self.is_exact = is_exact
        self.num_taken = num_steps
        self._restart = restart

    @property
    def iterator(self):
        """The iterator itself; to be used and not kept."""
        return self.source.iterator

    def restart(self) -> bool:
        """Starts the data anew where that is due; whether it did."""
        if self._restart is None:
            return False
        self.source, self._restart = self._restart(), None
        return True

    def __iter__(self):
        return self

    def __next__(self):
        """Returns the next batch; `predict` takes them one by one."""
        return next(self.iterator)


class EpochIterator:
    """Hands the user's data to `fit`, `evaluate` and `predict`, epoch by epoch.

    It stands where Keras' own epoch iterator stands and knows exactly how many batches are left, so
    that `steps_per_execution` never runs over the end, data of unknown length is not read twice,
    and a model is built from the shapes of the data, not from a batch of it.

    Args: those of `keras.Model.fit`, by the same names; `distribute_strategy` is one of ours.

    Raises:
        ValueError: No batches at all, or fewer than `steps_per_epoch` where the length is known.
    """

    def __init__(
        self,
        x=None,
        y=None,
        sample_weight=None,
        batch_size=None,
        steps_per_epoch=None,
        shuffle=False,
        class_weight=None,
        steps_per_execution=1,
        *,
        distribute_strategy,
    ):
        self.steps_per_epoch = _capped(steps_per_epoch)
        self.steps_per_execution = steps_per_execution
        self._strategy = distribute_strategy
        self._class_weight = class_weight if _is_distributed(x) else None
        self._adapter = keras_adapter.make_data_adapter(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=self.steps_per_epoch,
            shuffle=shuffle,
            class_weight=None if _is_distributed(x) else class_weight,
        )
        self._dataset = self._adapter.get_tf_dataset()
        self._own_data = file_shards.shard(self._dataset, distribute_strategy)
        # TensorFlow counts the batches of a replica for some distributed datasets: not to be used.
        is_counted = not _is_distributed(x) and self._own_data is None
        self._length = self._adapter.num_batches if is_counted else None
        self._seen_length = None
        self._check_length()
        self.reset()

    @property
    def num_batches(self) -> int | None:
        """Batches of an epoch: as asked for, as known, or as counted in the epoch before."""
        return self.steps_per_epoch or self._length or self._seen_length

    @property
    def element_spec(self):
        """Shapes and dtypes of a batch, with an open batch axis; nothing is read to find them."""
        return keras_adapter.batch_spec(self._dataset.element_spec)

    def reset(self):
        """Starts anew at the first batch."""
        self._source = None
        self._num_taken = 0
        self._step = 0

    def __iter__(self) -> Iterator[tuple[int, int, GlobalBatches]]:
        """Yields (first step, last step, batches) for every call of the step function."""
        self._adapter.on_epoch_begin()
        source = self._source
        if source is None or self.steps_per_epoch is None:
            source = self._start()
        self._step = 0
        while num_steps := self._next_num_steps():
            continues = self._step == 0 and self._num_taken > 0
            request = GlobalBatches(
                source,
                num_steps=num_steps,
                is_exact=self._length is not None,
                restart=self._start if continues else None,
            )
            yield self._step, self._step + num_steps - 1, request
            source = request.source
            self._num_taken += request.num_taken
            self._step += request.num_taken
            if request.num_taken < num_steps:
                break
        self._end_epoch()

    @contextlib.contextmanager
    def catch_stop_iteration(self):
        """Ends the epoch where data of unknown length ends."""
        try:
            yield
        except (StopIteration, tf.errors.OutOfRangeError):
            self._end_epoch()

    def _next_num_steps(self) -> int:
        """Returns how many steps the next call may take: 0 at the end of the epoch."""
        num_steps = self.steps_per_execution
        if self.steps_per_epoch is not None:
            num_steps = min(num_steps, self.steps_per_epoch - self._step)
        if self._length is not None:
            num_steps = min(num_steps, self._length - self._num_taken)
        return num_steps

    def _start(self):
        self._source = self._open()
        self._num_taken = 0
        return self._source

    def _open(self) -> DataSource:
        if self._own_data is not None:
            iterator = iter(self._own_data)
            *_, size = next(iterator)
            next_size = workers.sum_over(self._strategy, size)
            return DataSource(iterator, next_size=tf.constant(next_size, tf.int64))
        iterator = iter(self._dataset)
        if self._class_weight is not None:
            iterator = _with_class_weight(iterator, self._class_weight, self._strategy)
        return DataSource(iterator)

    def _end_epoch(self):
        num_steps = self._step
        if num_steps == 0:
            raise ValueError(
                "The data holds no batch: nothing was trained or evaluated in this epoch. Check "
                "the files, filters and `take`/`skip` of the dataset."
            )
        if self.steps_per_epoch is None:
            self._seen_length = num_steps
        elif num_steps < self.steps_per_epoch:
            warnings.warn(
                f"The data ended after {num_steps} of steps_per_epoch={self.steps_per_epoch} "
                "batches, and the epoch with it. Use `dataset.repeat()`, or fewer steps.",
                stacklevel=2,
            )
            self._source = None
        if self._length is not None and self._num_taken >= self._length:
            self._source = None
        self._adapter.on_epoch_end()

    def _check_length(self):
        if self._length == 0:
            raise ValueError(
                "The data holds no batch. Received: a dataset of length 0; with "
                "`drop_remainder=True` it may be smaller than one batch."
            )
        if self._length and self.steps_per_epoch and self._length < self.steps_per_epoch:
            raise ValueError(
                f"`steps_per_epoch` is larger than the data. Received: steps_per_epoch="
                f"{self.steps_per_epoch}, and a dataset of {self._length} batches. Use "
                f"`dataset.repeat()`, or at most {self._length} steps."
            )


def _capped(steps_per_epoch):
    limit = keras.config.max_steps_per_epoch()
    if limit and (not steps_per_epoch or limit < steps_per_epoch):
        warnings.warn(f"Limiting steps_per_epoch to {limit}", stacklevel=4)
        return limit
    return steps_per_epoch


def _is_distributed(data) -> bool:
    return isinstance(data, tf.distribute.DistributedDataset)


def _with_class_weight(iterator, class_weight, strategy):
    """Yields distributed batches with the weight of each example's class as `sample_weight`."""
    weigh = keras_adapter.class_weight_function(class_weight)
    first, *_ = workers.local_replicas(strategy)
    for batch in iterator:
        parts = map(strategy.experimental_local_results, batch)
        replicas = [weigh(*data) for data in zip(*parts, strict=True)]
        yield strategy.experimental_distribute_values_from_function(
            lambda context, replicas=replicas: replicas[context.replica_id_in_sync_group - first]
        )
