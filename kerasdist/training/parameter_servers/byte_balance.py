"""Which parameter server a variable goes to: the one that holds the fewest bytes.

TensorFlow takes them in turn, so that all kernels are on one and all biases on another.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from kerasdist.training.parameter_servers import sharded_variables


class ByteBalance:
    """Makes the variables of one strategy.

    Args:
        num_servers: Number of parameter servers.
    """

    def __init__(self, num_servers: int):
        self._num_bytes = [0] * num_servers

    def create(self, create_on: Callable, next_creator, **kwargs):
        """Makes a variable, whole or in parts; see `sharded_variables.create`.

        Args:
            create_on: Called as create_on(server, in_parts, next_creator, **kwargs).
            next_creator: As TensorFlow hands it over.
            **kwargs: Likewise.
        """
        create_whole, create_parts = (
            functools.partial(self._create, create_on, in_parts) for in_parts in (False, True)
        )
        return sharded_variables.create(create_whole, create_parts, next_creator, **kwargs)

    def _create(self, create_on, in_parts, next_creator, **kwargs):
        server = self._num_bytes.index(min(self._num_bytes))
        variable = create_on(server, in_parts, next_creator, **kwargs)
        for part in sharded_variables.parts_of(variable):
            server = tf.DeviceSpec.from_string(part.device).task
            self._num_bytes[server] += part.dtype.size * (part.shape.num_elements() or 0)
        return variable
