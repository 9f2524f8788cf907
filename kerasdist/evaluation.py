"""The checkpoints of a training that runs in other processes, as they come."""

import os
import time
from collections.abc import Iterator

from kerasdist.support.checks import check_int, check_positive, checked_folder
from kerasdist.support.terminal import say


def new_checkpoints(
    directory: str | os.PathLike,
    *,
    after_step: int = -1,
    every_secs: float = 10,
    timeout_secs: float = 3600,
) -> Iterator[tuple[int, str]]:
    """Yields each new checkpoint of a training, to evaluate the model while it is trained.

    Run it in a process that takes no part in the training, such as the evaluator of `launch
    --evaluator` or of `TF_CONFIG`. If several checkpoints came at once, the newest is yielded. The
    loop ends when a `fit` is over and its last checkpoint was yielded, or when no new one has come
    for `timeout_secs`; a line says which. If the program calls `fit` several times in a row, begin
    anew with `after_step`.

    Args:
        directory: The folder of `callbacks.Checkpoint`; it need not exist yet.
        after_step: Checkpoints up to this step are left out, such as those that were evaluated
            before this program was started again.
        every_secs: Seconds between two looks into the folder. Not 0, unlike in callbacks, where it
            means each step: a process that only looks would never rest.
        timeout_secs: Seconds to wait for the next checkpoint.

    Yields:
        The step of a checkpoint that is whole, and its folder, for `kerasdist.warm_start`. It is
        removed when the training has made `keep` newer ones.

    Raises:
        TypeError, ValueError: `after_step` is not an int, a time is not a positive number, or
            `directory` is not the path of a folder.
        OSError: A checkpoint is there and cannot be read, as without the permission.

    Example:
        ```python
        for step, checkpoint in kerasdist.new_checkpoints("runs/1"):
            kerasdist.warm_start(model, checkpoint)
            print(step, model.evaluate(test_data, return_dict=True))
        ```

    Source: `evaluation_loop` of TF-Slim, and `tf.train.checkpoints_iterator`.
    """
    check_int("after_step", after_step, at_least=-1)
    check_positive("every_secs", every_secs)
    check_positive("timeout_secs", timeout_secs)
    return _new_ones(checked_folder("directory", directory), after_step, every_secs, timeout_secs)


def _new_ones(directory: str, last: int, every_secs: float, timeout_secs: float):
    from kerasdist.checkpoints import Folder  # `import kerasdist` loads no TensorFlow.

    folder, deadline = Folder(directory), time.monotonic() + timeout_secs
    while True:
        newest = max(folder.steps(), default=-1)
        saved = folder.newest() if newest > last else None
        if saved is not None and saved.step > last:
            last = saved.step
            yield last, saved.path
            deadline = time.monotonic() + timeout_secs
        elif 0 <= newest <= last and folder.is_finished(newest):
            say(f"The training in {directory} is finished at step {newest}.")
            return
        elif (left := deadline - time.monotonic()) <= 0:
            say(f"No new checkpoint in {directory} for {timeout_secs:g} s.")
            return
        else:
            time.sleep(min(every_secs, left))
