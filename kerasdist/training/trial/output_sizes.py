"""How much a model makes of some examples: whether a step of many of them would cost much."""

import contextlib
from collections.abc import Generator

import tensorflow as tf

from kerasdist.private import keras_layers
from kerasdist.training.hooks import layer_outputs

# Of the outputs of all layers, in all runs of a rehearsal: a few seconds, and little memory.
_MOST_BYTES = 2**27


class OutputSizes:
    """Adds up what layers give in a rehearsal of a few examples, over all of its runs."""

    def __init__(self):
        self._num_bytes = 0

    @contextlib.contextmanager
    def counted(self, model) -> Generator[None]:
        """Counts what the layers of a model give inside, eagerly."""
        layers = [each for each in keras_layers.layers_of(model) if each is not model]
        with layer_outputs.watched(layers, self._note):
            yield

    def _note(self, _, output):
        leaves = tf.nest.flatten(output, expand_composites=True)
        self._num_bytes += sum(
            leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves if tf.is_tensor(leaf)
        )

    def allow(self, ratio: float) -> bool:
        """Whether so many times as many examples would still cost little."""
        return self._num_bytes * ratio <= _MOST_BYTES
