"""Trains `train.py` on the workers of a Ray cluster, which starts them again if one is lost.

FOLDER is a folder that all nodes share, or that of a bucket; WORKERS, how many workers there are.
"""

import os
from pathlib import Path
from typing import Any

from ray import train
from ray.train.tensorflow import TensorflowTrainer


def loop(config: dict[str, Any]) -> None:
    """Runs the program in a worker, for which Ray has set TF_CONFIG."""
    os.environ.update(config["environ"])
    exec(compile(config["program"], "train.py", "exec"), {"__name__": "__main__"})


folder = os.environ.get("FOLDER", os.path.abspath("runs/ray"))
settings = {"CHECKPOINTS": f"{folder}/checkpoints", "EPOCHS": os.environ.get("EPOCHS", "20")}
TensorflowTrainer(
    loop,
    train_loop_config={
        "environ": settings,
        "program": Path(__file__).with_name("train.py").read_text(),
    },
    scaling_config=train.ScalingConfig(num_workers=int(os.environ.get("WORKERS", "2"))),
    run_config=train.RunConfig(
        storage_path=f"{folder}/ray",
        # Ray cannot tell a lost worker from an error of the program: this counts both.
        failure_config=train.FailureConfig(max_failures=3),
    ),
).fit()
