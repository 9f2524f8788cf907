"""From a deployment config to a strategy: the line that touches TensorFlow."""

import os

from kerasdist.cluster import Cluster
from kerasdist.config import DeploymentConfig
from kerasdist.strategies.choice import Choice, choose


def make_strategy(config: DeploymentConfig | None = None, *, cluster: Cluster | None = None):
    """Makes the strategy in whose scope stock `compile`, `fit`, `evaluate` and `predict` work.

    Call it first in the program: TensorFlow fixes its devices with the first tensor.

    Args:
        config: What to deploy on. None uses all GPUs of the machine, or its CPU.
        cluster: Where this process stands. Defaults to `Cluster.from_env()`.

    Returns:
        A `tf.distribute.Strategy`.

    Raises:
        ValueError: The config contradicts the cluster or asks for GPUs that do not exist.
        RuntimeError: Keras runs on another backend than TensorFlow; TensorFlow has started with too
            few logical CPUs; or the deployment needs several processes, which this version does not
            have yet.

    Example:
        strategy = kerasdist.make_strategy(kerasdist.DeploymentConfig(num_clones=2))
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(10)])
            model.compile(optimizer="sgd", loss="mse")
        model.fit(dataset)      # batched with the global batch size
    """
    _check_backend()
    cluster = Cluster.from_env() if cluster is None else cluster
    choice = choose(config, cluster, num_gpus=count_gpus())
    if choice.strategy in ("MultiWorkerMirroredStrategy", "ParameterServerStrategy"):
        raise RuntimeError(
            f"{choice.strategy} is not in this version of kerasdist yet. Chosen because of "
            f"{choice.reason}. What works now: one device, and several devices of one machine "
            "(num_clones)."
        )
    return _construct(choice)


def count_gpus() -> int:
    """Returns the number of GPUs that TensorFlow sees on this machine."""
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def _construct(choice: Choice):
    from kerasdist.strategies.logical_cpus import make_logical_cpus
    from kerasdist.strategies.mirrored import MirroredStrategy
    from kerasdist.strategies.one_device import OneDeviceStrategy

    num_cpus = sum("CPU" in device for device in choice.devices)
    if num_cpus:
        make_logical_cpus(num_cpus)
    if choice.strategy == "MirroredStrategy":
        return MirroredStrategy(list(choice.devices), reason=choice.reason)
    return OneDeviceStrategy(choice.devices[0], reason=choice.reason)


def _check_backend():
    remedy = (
        "kerasdist runs Keras on TensorFlow. Set KERAS_BACKEND=tensorflow before Keras is "
        "imported, or remove `backend` from ~/.keras/keras.json."
    )
    wanted = os.environ.get("KERAS_BACKEND", "tensorflow")
    if wanted != "tensorflow":
        raise RuntimeError(f"{remedy} Received: KERAS_BACKEND={wanted}.")
    try:
        import keras
    except ImportError as error:
        raise RuntimeError(f"{remedy} Importing Keras failed: {error}") from error
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(f"{remedy} Received: backend {keras.config.backend()!r}.")
