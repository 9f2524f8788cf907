"""Start, watch, restart and stop the processes of a cluster on this machine.

    result = kerasdist.launch(["python", "train.py"], num_workers=4)
    values = kerasdist.launch(train, num_workers=2)  # A function, also one of a notebook.

The command is `python -m kerasdist launch --workers 4 -- python train.py`. No TensorFlow here.
"""

from kerasdist.launcher.launch import LaunchError as LaunchError
from kerasdist.launcher.launch import launch as launch
from kerasdist.launcher.result import LaunchResult as LaunchResult
from kerasdist.launcher.result import TaskResult as TaskResult
from kerasdist.launcher.settings import DEFAULTS as DEFAULTS
from kerasdist.launcher.settings import NETWORKS as NETWORKS
from kerasdist.launcher.settings import Settings as Settings
