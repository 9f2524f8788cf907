"""Gives Keras and TensorFlow back as they were before the first strategy."""

from kerasdist.support import memory


def undo() -> None:
    """Gives Keras and TensorFlow back every function that `make_strategy` has replaced.

    Call it where nothing trains. Plain models are then trained by Keras' own functions alone; for
    them, nothing else changes. A model of one of kerasdist's strategies cannot train, and says so,
    until the next call of `make_strategy`, which replaces the functions again. Where another
    library has put a function before one of kerasdist's meanwhile, its function stays, and calls
    Keras' own.

    A process that has joined a cluster stays in it, with what ends it if another task is lost.

    Raises:
        RuntimeError: A training runs, in this thread or another one.

    Example:
        ```python
        strategy = kerasdist.make_strategy()
        kerasdist.undo()
        model = keras.Sequential([keras.layers.Dense(10)])  # Keras alone.
        ```
    """
    if memory.THREAD.calls or memory.PROCESS.originals:
        raise RuntimeError(
            "`kerasdist.undo` was called while a model trains, evaluates or predicts, which needs "
            "the functions of kerasdist. Call it when that has returned."
        )
    with memory.PROCESS.lock:
        while memory.PROCESS.replacements:
            memory.PROCESS.replacements.pop()()
