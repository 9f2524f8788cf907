"""Train a Keras 3 model on one device, on many GPUs or on many machines: the same script.

All that a script needs:

    strategy = kerasdist.make_strategy()
    with strategy.scope():
        model = ...
        model.compile(...)
    model.fit(dataset)
"""

import importlib

from kerasdist.cluster import Cluster as Cluster
from kerasdist.cluster import Task as Task
from kerasdist.config import DeploymentConfig as DeploymentConfig
from kerasdist.launcher import launch as launch
from kerasdist.plan import Plan as Plan
from kerasdist.plan import plan_training as plan_training
from kerasdist.preflight import ClusterStartError as ClusterStartError
from kerasdist.reductions import global_mean as global_mean
from kerasdist.reductions import global_sum as global_sum
from kerasdist.strategies.make_strategy import make_strategy as make_strategy
from kerasdist.tasks import barrier as barrier
from kerasdist.tasks import is_chief as is_chief
from kerasdist.weights.warm_start import warm_start as warm_start


def __getattr__(name: str):
    # These subclass Keras' classes; config and cluster must load without TensorFlow.
    if name in ("callbacks", "schedules"):
        return importlib.import_module(f"kerasdist.{name}")
    raise AttributeError(f"module 'kerasdist' has no attribute {name!r}")
