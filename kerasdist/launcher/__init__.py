"""The course of a launch: what its program is, when a cluster starts again, how it ends.

    result = kerasdist.launch(["python", "train.py"], num_workers=4)
    values = kerasdist.launch(train, num_workers=(1, 4))  # A function, also one of a notebook.

The command is `python -m kerasdist launch --workers 4 -- python train.py`. No TensorFlow here.
"""

from kerasdist.launcher.launch import LaunchError as LaunchError
from kerasdist.launcher.launch import launch as launch
from kerasdist.processes.result import LaunchResult as LaunchResult
from kerasdist.processes.result import TaskResult as TaskResult
from kerasdist.processes.settings import DEFAULTS as DEFAULTS
from kerasdist.processes.settings import NETWORKS as NETWORKS
from kerasdist.processes.settings import Settings as Settings
