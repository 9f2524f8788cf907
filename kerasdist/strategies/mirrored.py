"""Many devices of one machine: a copy of the model on each, updated in step."""

import functools
from collections.abc import Sequence

import tensorflow as tf

from kerasdist.private import strategy_adapter
from kerasdist.training import routes
from kerasdist.training.context.deployment import Deployment


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """TensorFlow's MirroredStrategy, in whose scope stock `fit` equals one device.

    Args:
        devices: Device names, one replica each, such as ["GPU:0", "GPU:1"].

    Attributes:
        deployment: To which `make_strategy` adds why it was chosen.

    Example:
        strategy = MirroredStrategy(["GPU:0", "GPU:1"])
        with strategy.scope():
            model = make_model()
    """

    def __init__(self, devices: Sequence[str]):
        strategy_adapter.separate_collectives(self)
        super().__init__(devices, cross_device_ops=_cross_device_ops(devices))
        self.deployment = Deployment()
        routes.adapt(self)


def _cross_device_ops(devices: Sequence[str]):
    # Logical CPUs share their memory: adding on one of them beats a ring of copies.
    if all("CPU" in device for device in devices):
        return tf.distribute.ReductionToOneDevice(accumulation_fn=_sum_in_order)
    return None


def _sum_in_order(values: Sequence[tf.Tensor]):
    """Returns the sum, added from left to right.

    `tf.add_n` begins with the value whose memory it may take, which is another one if a callback
    reads the gradients too, or by chance; of three values the sum then differs in its last bit.
    """
    # Without, TensorFlow makes one add_n of the additions.
    with tf.control_dependencies(values[-1:]):
        return functools.reduce(tf.add, values)
