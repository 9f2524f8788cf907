"""An iterator over the user's data that ends without a wait, unless Python makes the data.

TensorFlow tunes a running iterator from a thread that sleeps for 10 ms, 20 ms, 40 ms and so on, up
to a minute. An iterator that is deleted wakes the thread first and marks itself as ended second;
where the thread is quicker it sees an iterator that has not ended, sleeps on, and the deletion
waits. On two cores that was every third `fit` or epoch, which then took up to twice its time.

Where Python makes the data, the iterator may be in the middle of a call of it. The next one, or the
program, must not make another call at the same time: a generator fails, and a file is read by two.
"""

import _thread
from collections.abc import Iterator


class DataSource:
    """Holds the only lasting reference to an iterator, and lets it go without a wait.

    Args:
        iterator: Of `tf.data`, of a distributed dataset, or any other.
        next_size: int64 scalar, the examples of the next global batch, for data of which each
            worker reads its own part (see `file_shards`); None for others.
        is_distributed: Whether its batches have a value for each replica already.
        calls_python: Whether Python makes the data: then it is waited for, as in plain Keras.
    """

    def __init__(
        self,
        iterator: Iterator,
        *,
        next_size=None,
        is_distributed: bool = False,
        calls_python: bool = False,
    ):
        self.iterator = iterator
        self.next_size = next_size
        self.is_distributed = is_distributed
        self._calls_python = calls_python

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.iterator)

    def __del__(self):
        if self._calls_python:
            return
        references = [self.__dict__.pop("iterator")]
        try:
            # threading.Thread would wait until the thread runs: for ever, where Python shuts down.
            _thread.start_new_thread(references.clear, ())
        except RuntimeError:  # Too late for new threads.
            references.clear()
