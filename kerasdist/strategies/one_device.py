"""One device: the truth that every other deployment is compared with."""

import tensorflow as tf

from kerasdist.training import routes
from kerasdist.training.context.deployment import Deployment


class OneDeviceStrategy(tf.distribute.OneDeviceStrategy):
    """TensorFlow's OneDeviceStrategy, in whose scope `fit` runs as under the others.

    Args:
        device: Name of the device, such as "GPU:0".

    Attributes:
        deployment: To which `make_strategy` adds why it was chosen.

    Example:
        strategy = OneDeviceStrategy("CPU:0")
        with strategy.scope():
            model = make_model()
    """

    def __init__(self, device: str):
        super().__init__(device)
        self.deployment = Deployment()
        routes.adapt(self)
