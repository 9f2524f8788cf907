"""One device: the truth that every other deployment is compared with."""

import tensorflow as tf

from kerasdist.training import routes


class OneDeviceStrategy(tf.distribute.OneDeviceStrategy):
    """TensorFlow's OneDeviceStrategy, in whose scope `fit` runs as under the others.

    Args:
        device: Name of the device, such as "GPU:0".

    Attributes:
        reason: Why it was chosen, for the plan; `make_strategy` sets it.

    Example:
        strategy = OneDeviceStrategy("CPU:0")
        with strategy.scope():
            model = make_model()
    """

    reason = ""

    def __init__(self, device):
        super().__init__(device)
        routes.adapt(self)
