"""Stages what workers hand over of their batches on the servers of the variables.

A synchronous update is made of the gradients of several batches. Each batch has a key. What comes
of it waits on every server for an update that takes this key, or for one that drops it:

    staged = contributions.stage(key, gradients, variables, weight=num_examples)   # on a worker
    mean = contributions.take(keys)                                               # on the chief

No gradient passes through the chief: the mean is computed where the variables are.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.hooks import divided_values
from kerasdist.training.parameter_servers import local_copies


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What several batches have contributed.

    Attributes:
        gradients: The mean over the batches by their weights: tensors, IndexedSlices or None.
        sums: What was handed over besides, by its name, added up: float64.
    """

    gradients: list
    sums: dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Gradients that are staged as one tensor, or the slices of one, as values and indices.

    Attributes:
        device: Where.
        positions: Of the gradients among all.
        shapes: Theirs; of slices that of the variable.
        dtypes: Of what is staged.
    """

    device: str
    positions: tuple[int, ...]
    shapes: tuple[tf.TensorShape, ...]
    dtypes: tuple[tf.DType, ...]

    @property
    def is_sliced(self) -> bool:
        return len(self.dtypes) == 2

    def tensors_of(self, gradients: list) -> list:
        """Returns what is staged of all gradients."""
        if self.is_sliced:
            slices = gradients[self.positions[0]]
            return [slices.values, slices.indices]
        mine = [gradients[position] for position in self.positions]
        return [local_copies.pack(mine)] if len(mine) > 1 else mine

    def mean_of(self, staged: list[list], fractions: list) -> list:
        """Returns the mean gradients.

        Args:
            staged: What each batch has staged.
            fractions: What each of them counts for.
        """
        weighed = [
            # What a batch without weight has computed counts for nothing, NaN included.
            tf.math.multiply_no_nan(tensors[0], tf.cast(fraction, tensors[0].dtype))
            for tensors, fraction in zip(staged, fractions, strict=True)
        ]
        if self.is_sliced:
            (shape,) = self.shapes
            values = tf.concat([tf.ensure_shape(each, [None, *shape[1:]]) for each in weighed], 0)
            indices = tf.concat([tf.ensure_shape(rows, [None]) for _, rows in staged], 0)
            return [tf.IndexedSlices(values, indices, tf.constant(shape.as_list(), indices.dtype))]
        mean = tf.add_n(weighed)
        if len(self.shapes) == 1:
            return [tf.ensure_shape(mean, self.shapes[0])]
        return local_copies.unpack(mean, [tf.TensorSpec(shape) for shape in self.shapes])


class Contributions:
    """Gradients of batches, on the servers of their variables; what is summed is on the first."""

    def __init__(self):
        self._name = variable_adapter.unique_name()
        self._pieces: list[_Piece] | None = None  # Known from the first trace on.
        self._num_gradients = 0
        self._sums: list[tuple[str, tf.TensorShape]] = []

    # What follows is traced by the chief and runs on a worker.

    def stage(
        self,
        key: tf.Tensor,
        gradients: list,
        variables: list,
        *,
        weight: Any,
        sums: dict[str, Any] | None = None,
    ) -> list[tf.Operation]:
        """Hands over what comes of a batch.

        Args:
            key: int64 scalar, which no other batch has.
            gradients: Tensors, IndexedSlices or None, of the mean loss of this batch.
            variables: Keras' or TensorFlow's, of parameter servers.
            weight: Scalar, what the loss of this batch was divided by.
            sums: Numbers to be added up over the batches of an update, by their names, as float64.

        Returns:
            The operations that have ended when all is there.

        Raises:
            ValueError: Not the gradients that an earlier trace has had.
        """
        sums = {name: tf.cast(value, tf.float64) for name, value in sorted((sums or {}).items())}
        self._note_form(gradients, variables, [(name, sums[name].shape) for name in sums])
        # One message for both numbers: below 2 ** 53 a key is exact.
        header = tf.stack([tf.cast(key, tf.float64), tf.cast(weight, tf.float64)])
        staged = []
        for device, pieces in self._by_device().items():
            tensors = [tensor for piece in pieces for tensor in piece.tensors_of(gradients)]
            if self._has_sums(device):
                tensors.append(local_copies.pack(list(sums.values())))
            with tf.device(device):
                here, weight_here = tf.unstack(tf.identity(header))
                staged.append(
                    tf.raw_ops.MapStage(
                        key=tf.cast(here, tf.int64),
                        indices=list(range(len(tensors) + 1)),
                        values=[weight_here, *tensors],
                        dtypes=self._dtypes_on(device),
                        shared_name=self._name,
                    )
                )
        return staged

    def _note_form(self, gradients: list, variables: list, sums: list) -> None:
        pieces = list(_pieces_of(gradients, variables))
        if self._pieces is None:
            self._pieces, self._num_gradients, self._sums = pieces, len(gradients), sums
        elif (pieces, len(gradients), sums) != (self._pieces, self._num_gradients, self._sums):
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
        gradients: list = [None] * self._num_gradients
        sums: dict = {}
        for device, pieces in self._by_device().items():
            with tf.device(device):
                batches = self._unstaged(device, keys)
                fractions = _fractions([weight for weight, *_ in batches])
                start = 1
                for piece in pieces:
                    end = start + len(piece.dtypes)
                    mean = piece.mean_of([batch[start:end] for batch in batches], fractions)
                    for position, gradient in zip(piece.positions, mean, strict=True):
                        gradients[position] = gradient
                    start = end
                if self._has_sums(device):
                    total = tf.add_n([batch[-1] for batch in batches])
                    names, shapes = zip(*self._sums, strict=True)
                    parts = local_copies.unpack(total, [tf.TensorSpec(shape) for shape in shapes])
                    sums = dict(zip(names, parts, strict=True))
        return Taken(gradients=gradients, sums=sums)

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

    def _has_sums(self, device: str) -> bool:
        return bool(self._sums) and device == next(iter(self._by_device()))

    def _dtypes_on(self, device: str) -> list[tf.DType]:
        pieces = self._by_device()[device]
        dtypes = [tf.float64, *(dtype for piece in pieces for dtype in piece.dtypes)]
        return [*dtypes, tf.float64] if self._has_sums(device) else dtypes


def _pieces_of(gradients: list, variables: list) -> Iterable[_Piece]:
    small: dict = {}
    for position, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        if gradient is None:
            continue
        weight = variable_adapter.value_of(variable)
        # A divided weight is updated in its parts; until then its gradient is with the first one.
        device = divided_values.parts_of(weight)[0].device
        if isinstance(gradient, tf.IndexedSlices):
            dtypes = gradient.values.dtype, gradient.indices.dtype
            yield _Piece(device, (position,), (weight.shape,), dtypes)
        elif local_copies.is_small(weight):
            small.setdefault((device, gradient.dtype), []).append((position, weight.shape))
        else:
            yield _Piece(device, (position,), (weight.shape,), (gradient.dtype,))
    for (device, dtype), members in small.items():
        positions, shapes = zip(*members, strict=True)
        yield _Piece(device, positions, shapes, (dtype,))


def _fractions(weights: list) -> list:
    """Returns what each batch counts for; all count alike where none has a weight."""
    total = tf.add_n(weights)
    alike = tf.constant(1 / len(weights), total.dtype)
    return [tf.where(total > 0, tf.math.divide_no_nan(each, total), alike) for each in weights]
