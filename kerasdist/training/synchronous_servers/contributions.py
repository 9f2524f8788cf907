"""Stages what workers hand over of their batches on the servers of the variables.

A synchronous update is made of the gradients of several batches. Each batch has a key. What comes
of it waits on every server for an update that takes this key, or for one that drops it:

    values = [Value(gradient, How.MEAN, beside=variable), Value(num_correct, How.SUM)]
    there, parcel = contributions.stage(key, values, weight=total, num_examples=num_examples)
    gradient, num_correct = contributions.take(keys).values    # On the chief, for several keys.

No gradient passes through the chief: the mean is computed where the variables are.
"""

import dataclasses
import enum
import functools
import operator
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.parameter_servers import local_copies
from kerasdist.training.synchronous_servers import server_calls
from kerasdist.training.synchronous_servers.server_calls import Parcel


class How(enum.Enum):
    """What becomes of the values that several batches have staged.

    Attributes:
        MEAN: Their mean by what the losses of the batches were divided by, as of gradients.
        MEAN_OF_EXAMPLES: Their mean by the examples of the batches.
        SUM: Their sum.
        FIRST: That of the first batch.
        LARGEST: The largest, of each element.
    """

    MEAN = enum.auto()
    MEAN_OF_EXAMPLES = enum.auto()
    SUM = enum.auto()
    FIRST = enum.auto()
    LARGEST = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """What comes of a batch.

    Attributes:
        tensor: A tensor; or IndexedSlices, of which there can be a mean.
        how: What it becomes with those of other batches.
        beside: The variable of TensorFlow's, in one piece and of the same shape, on whose server it
            waits; None for that of the first one that has such a variable.
        factor: By which a mean is multiplied.
    """

    tensor: Any
    how: How
    beside: Any = None
    factor: int = 1

    @property
    def shape(self) -> tf.TensorShape:
        # A gradient need not know its own.
        return self.tensor.shape if self.beside is None else self.beside.shape

    @property
    def dtypes(self) -> tuple[tf.DType, ...]:
        if isinstance(self.tensor, tf.IndexedSlices):
            return self.tensor.values.dtype, self.tensor.indices.dtype
        return (self.tensor.dtype,)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What several batches have contributed.

    Attributes:
        values: What became of the values, in the order in which they are staged.
        weight: The sum of what the losses of the batches were divided by: float64.
        num_examples: Of the batches: float64.
    """

    values: list
    weight: tf.Tensor
    num_examples: tf.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class _Weights:
    """What each of some batches counts for.

    Attributes:
        fractions: In a mean by what losses are divided by.
        shares: In a mean by examples.
    """

    fractions: list
    shares: list


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Values that are staged as one tensor, or the slices of one, as values and indices.

    Attributes:
        device: Where.
        how: What becomes of them.
        factor: As of `Value`.
        positions: Theirs among all.
        shapes: Theirs; of slices that of the variable.
        dtypes: Of what is staged.
    """

    device: str
    how: How
    factor: int
    positions: tuple[int, ...]
    shapes: tuple[tf.TensorShape, ...]
    dtypes: tuple[tf.DType, ...]

    @property
    def is_sliced(self) -> bool:
        return len(self.dtypes) == 2

    @property
    def is_small(self) -> bool:
        """Whether it is of values that are sent together with others."""
        specs = (tf.TensorSpec(shape, self.dtypes[0]) for shape in self.shapes)
        return not self.is_sliced and all(map(local_copies.is_small, specs))

    def tensors_of(self, values: list[Value]) -> list:
        """Returns what is staged of all values."""
        mine = [values[position].tensor for position in self.positions]
        if self.is_sliced:
            return [mine[0].values, mine[0].indices]
        return [local_copies.pack(mine)] if len(mine) > 1 else mine

    def combined(self, staged: list[list], weights: _Weights) -> list:
        """Returns what the values of several batches become.

        Args:
            staged: What each batch has staged.
            weights: What each of them counts for.
        """
        if self.is_sliced:
            return [self._slices(staged, weights)]
        tensors = [tensor for (tensor,) in staged]
        if self.how in (How.MEAN, How.MEAN_OF_EXAMPLES):
            tensors = self._weighed(tensors, weights)
        result = tensors[0]
        if self.how is How.LARGEST:
            result = functools.reduce(tf.maximum, tensors)
        elif self.how is not How.FIRST:
            result = functools.reduce(operator.add, tensors)
        if len(self.shapes) == 1:
            return [tf.ensure_shape(result, self.shapes[0])]
        return local_copies.unpack(result, [tf.TensorSpec(shape) for shape in self.shapes])

    def _slices(self, staged: list[list], weights: _Weights) -> tf.IndexedSlices:
        (shape,) = self.shapes
        weighed = self._weighed([values for values, _ in staged], weights)
        values = tf.concat([tf.ensure_shape(each, [None, *shape[1:]]) for each in weighed], 0)
        indices = tf.concat([tf.ensure_shape(rows, [None]) for _, rows in staged], 0)
        return tf.IndexedSlices(values, indices, tf.constant(shape.as_list(), indices.dtype))

    def _weighed(self, tensors: list, weights: _Weights) -> list:
        counts = weights.fractions if self.how is How.MEAN else weights.shares
        # What a batch without weight has computed counts for nothing, NaN included.
        return [
            tf.math.multiply_no_nan(tensor, tf.cast(count * self.factor, tensor.dtype))
            for tensor, count in zip(tensors, counts, strict=True)
        ]


class Contributions:
    """What comes of batches, on the servers of the variables.

    Args:
        home: The device of the server to which a worker sends a message for each batch; None for
            none. What is small, and belongs there, travels with that.
    """

    def __init__(self, home: str | None = None):
        self._home = home
        self._name = variable_adapter.unique_name()
        self._pieces: list[_Piece] | None = None  # Known from the first trace on.

    # What follows is traced by the chief and runs on a worker.

    def stage(
        self, key: tf.Tensor, values: list[Value], *, weight: Any, num_examples: Any
    ) -> tuple[list, Parcel]:
        """Hands over what comes of a batch.

        Args:
            key: int64 scalar, which no other batch has.
            values: The same ones for every batch.
            weight: Scalar, what the loss of this batch was divided by.
            num_examples: Scalar, of this batch.

        Returns:
            Operations and tensors that are there when all is staged but for a parcel; and that.

        Raises:
            ValueError: Not the values that an earlier trace has had.
        """
        self._note_form(values)
        # One message for all numbers: below 2 ** 53 a key is exact.
        header = tf.stack([tf.cast(each, tf.float64) for each in (key, weight, num_examples)])
        ended, parcel = [], Parcel()
        for device, pieces in self._by_device().items():
            tensors = [tensor for piece in pieces for tensor in piece.tensors_of(values)]
            store = functools.partial(self._store, device)
            if not all(piece.is_small for piece in pieces):
                with tf.device(device):
                    ended += store(tf.identity(header), *tensors)
            elif device == self._home:
                parcel = Parcel((header, *tensors), store)
            else:
                ended += server_calls.deliver(device, Parcel((header, *tensors), store))
        return ended, parcel

    def _store(self, device: str, header: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Operation]:
        """Stages on a server what has come there; traced for it."""
        key, *numbers = tf.unstack(header)
        staged = tf.raw_ops.MapStage(
            key=tf.cast(key, tf.int64),
            indices=list(range(len(tensors) + 1)),
            values=[tf.stack(numbers), *tensors],
            dtypes=self._dtypes_on(device),
            shared_name=self._name,
        )
        return [staged]

    def _note_form(self, values: list[Value]) -> None:
        pieces = list(_pieces_of(values))
        if self._pieces is None:
            self._pieces = pieces
        elif pieces != self._pieces:
            raise ValueError(
                "Synchronous workers must compute gradients of the same variables for every batch. "
                "This train_step computes others for a batch of another form. Give batches of one "
                "form, with gradients of all weights."
            )

    # What follows runs on the chief.

    def take(self, keys: list[tf.Tensor]) -> Taken:
        """Takes what some batches have contributed, which is there no more.

        Args:
            keys: int64 scalars, in the order in which the batches are added up.
        """
        values: dict[int, Any] = {}
        weight: Any = None
        num_examples: Any = None
        for device, pieces in self._by_device().items():
            with tf.device(device):
                batches = self._unstaged(device, keys)
                numbers = [tf.ensure_shape(header, [2]) for header, *_ in batches]
                divisors, counts = zip(*map(tf.unstack, numbers), strict=True)
                # All servers have them.
                weight, num_examples = tf.add_n(divisors), tf.add_n(counts)
                weights = _Weights(_fractions(divisors), _fractions(counts))
                start = 1
                for piece in pieces:
                    end = start + len(piece.dtypes)
                    found = piece.combined([batch[start:end] for batch in batches], weights)
                    values.update(zip(piece.positions, found, strict=True))
                    start = end
        return Taken(
            values=[value for _, value in sorted(values.items())],
            weight=weight,
            num_examples=num_examples,
        )

    def drop(self, key: tf.Tensor) -> None:
        """Forgets what a batch has contributed."""
        for device in self._by_device():
            with tf.device(device):
                self._unstaged(device, [key])

    def clear(self) -> None:
        """Forgets all that is staged. No worker may be staging anything."""
        for device in self._by_device():
            with tf.device(device):
                tf.raw_ops.MapClear(dtypes=self._dtypes_on(device), shared_name=self._name)

    def count(self) -> int:
        """Returns how many contributions are staged on the server that has most."""
        sizes = []
        for device in self._by_device():
            with tf.device(device):
                dtypes = self._dtypes_on(device)
                sizes.append(int(tf.raw_ops.MapSize(dtypes=dtypes, shared_name=self._name)))
        return max(sizes, default=0)

    def _unstaged(self, device: str, keys: list[tf.Tensor]) -> list[list[tf.Tensor]]:
        dtypes = self._dtypes_on(device)
        return [
            tf.raw_ops.MapUnstage(
                key=key,
                indices=list(range(len(dtypes))),
                dtypes=dtypes,
                shared_name=self._name,
            )
            for key in tf.unstack(tf.identity(tf.stack(keys)))
        ]

    def _by_device(self) -> dict[str, list[_Piece]]:
        pieces = self._pieces or []
        devices = dict.fromkeys(piece.device for piece in pieces)
        return {each: [piece for piece in pieces if piece.device == each] for each in devices}

    def _dtypes_on(self, device: str) -> list[tf.DType]:
        return [tf.float64, *(each for piece in self._by_device()[device] for each in piece.dtypes)]


def _pieces_of(values: list[Value]) -> Iterable[_Piece]:
    small: dict = {}
    first_device = next(each.beside.device for each in values if each.beside is not None)
    for position, value in enumerate(values):
        device = first_device if value.beside is None else value.beside.device
        is_sliced = len(value.dtypes) > 1
        if not is_sliced and local_copies.is_small(tf.TensorSpec(value.shape, *value.dtypes)):
            kind = device, value.how, value.factor, value.dtypes
            small.setdefault(kind, []).append((position, value.shape))
        else:
            shapes = (value.shape,)
            yield _Piece(device, value.how, value.factor, (position,), shapes, value.dtypes)
    for (device, how, factor, dtypes), members in small.items():
        positions, shapes = zip(*members, strict=True)
        yield _Piece(device, how, factor, positions, shapes, dtypes)


def _fractions(weights: Iterable) -> list:
    """Returns what each batch counts for; all count alike where none has a weight."""
    weights = list(weights)
    total = tf.add_n(weights)
    alike = tf.constant(1 / len(weights), total.dtype)
    return [tf.where(total > 0, tf.math.divide_no_nan(each, total), alike) for each in weights]
