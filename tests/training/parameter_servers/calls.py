"""Calls of a ledger, as they are on a worker: here it is this process."""

import contextlib

from kerasdist.private import variable_adapter


def begun(book, worker=0):
    attempt = book.attempt()
    attempt.worker = worker
    attempt.begin(worker)
    return attempt


def tell(book, attempt):
    """Lets what runs next be of an attempt, of whichever worker; to be called eagerly."""
    row, number = attempt.call
    variable_adapter.note_worker_numbers(book._name, [row, number - 1])


@contextlib.contextmanager
def tracing(book, attempt, done=None):
    """Does what is inside in the name of an attempt, eagerly."""
    tell(book, attempt)
    with book.tracing(done):
        yield
