"""A checkpoint of TensorFlow 1 with slim's names of variables, which its programs restore."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from .. import nets
from ..nets import slim_names
from ..usage_error import UsageError


def write(folder: Path, model: keras.Model, *, step: int) -> None:
    """Writes model.ckpt-<step> and slim's file `checkpoint` into a folder that is made here.

    Args:
        folder: As slim's --train_dir.
        model: A net with slim's layers, without the second classifier.
        step: That of the training.

    Raises:
        UsageError: The layers of the model are not slim's.
    """
    if model.name not in nets.NETS or not nets.NETS[model.name].has_slims_layers:
        raise UsageError(
            f"--form=slim writes slim's names of variables, and the layers of {model.name!r} have "
            "others. Choose another --form."
        )
    values = {slim_names.name_of(model.name, each.path): each.numpy() for each in model.weights}
    values["global_step"] = np.array(step, np.int64)
    prefix = f"model.ckpt-{step}"
    folder.mkdir()
    tf.raw_ops.SaveV2(
        prefix=str(folder / prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{prefix}"\n')
