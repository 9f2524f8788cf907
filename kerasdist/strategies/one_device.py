"""One device: the truth that every other deployment is compared with."""

import tensorflow as tf

from kerasdist.training import routes


class OneDeviceStrategy(tf.distribute.OneDeviceStrategy):
    """TensorFlow's OneDeviceStrategy, in whose scope `fit` runs as under the others.

    Args:
        device: Name of the device, such as "GPU:0".
        reason: Why it was chosen, for the plan.

    Example:
        strategy = OneDeviceStrategy("CPU:0")
        with strategy.scope():
            model = make_model()
    """

    def __init__(self, device, *, reason: str = ""):
        super().__init__(device)
        self.reason = reason
        routes.adapt(self)
