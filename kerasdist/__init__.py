"""Train a Keras 3 model on one device, on many GPUs or on many machines: the same script.

All a script needs:

    strategy = kerasdist.make_strategy()
    with strategy.scope():
        model = ...
        model.compile(...)
    model.fit(dataset)
"""

import importlib
import typing

from kerasdist.cluster import Cluster as Cluster
from kerasdist.cluster import Task as Task
from kerasdist.config import DeploymentConfig as DeploymentConfig
from kerasdist.evaluation import new_checkpoints as new_checkpoints
from kerasdist.launcher import LaunchError as LaunchError
from kerasdist.launcher.launch import launch as launch
from kerasdist.plan import Plan as Plan
from kerasdist.plan import plan_training as plan_training
from kerasdist.preflight import ClusterStartError as ClusterStartError
from kerasdist.reductions import global_mean as global_mean
from kerasdist.reductions import global_sum as global_sum
from kerasdist.strategies.make_strategy import make_strategy as make_strategy
from kerasdist.strategies.undo import undo as undo
from kerasdist.tasks import barrier as barrier
from kerasdist.tasks import is_chief as is_chief
from kerasdist.weights.warm_start import warm_start as warm_start

if typing.TYPE_CHECKING:
    from kerasdist import callbacks as callbacks
    from kerasdist import schedules as schedules

    __version__: str

# These subclass Keras' classes; config and cluster must load without TensorFlow.
_LAZY_MODULES = ("callbacks", "schedules")


def __getattr__(name: str):
    if name in _LAZY_MODULES:
        return importlib.import_module(f"kerasdist.{name}")
    if name == "__version__":
        from kerasdist.support.version import installed_version

        if version := installed_version():
            return version
    raise AttributeError(f"module 'kerasdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_MODULES, "__version__"})
