"""How far calls have come, here on a parameter server in this process; losses are for clusters."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.parameter_servers import ledger
from kerasdist.training.parameter_servers.ledger import ALL, Ledger
from tests.training.parameter_servers.calls import begun, tracing

DEVICE = "/device:CPU:0"


def make_ledger(num_rows=2, sleep=lambda secs: None):
    return Ledger([DEVICE], num_rows, sleep=sleep)


def told(book):
    """Returns the row and number of which the worker of this process was told last."""
    return tuple(variable_adapter.worker_numbers(book._name, 2).numpy().tolist())


def write(book, attempt, step, update=0):
    with tracing(book, attempt), book.at_step(step):
        book.write(book.devices[0], book.note(update))


def write_counts(book, attempt):
    with tracing(book, attempt):
        book.write(book.devices[0], book.note_of_counts())


def test_a_call_that_has_not_begun_is_done_nowhere():
    book = make_ledger()
    first = begun(book)
    write(book, first, step=7)
    first.end()
    second = begun(book)
    waiting = book.attempt()

    assert first.call[0] == second.call[0]
    assert [book.close(attempt).tolist() for attempt in (second, waiting)] == [[0], [0]]


def test_a_worker_is_told_its_row_once_and_counts_its_calls_itself():
    book = make_ledger()
    calls, heard = [], []
    for _ in range(3):
        attempt = begun(book)
        heard.append(told(book))
        with book.tracing():  # As the function does.
            pass
        attempt.end()
        calls.append(attempt.call)

    assert calls == [(0, 1), (0, 2), (0, 3)]
    assert heard == [(0, 0), (0, 1), (0, 2)]
    assert told(book) == (0, 3)


def test_a_worker_whose_call_has_failed_is_told_another_row():
    book = make_ledger()
    begun(book).end()
    lost = begun(book)
    following = begun(book)

    assert (lost.call, following.call) == ((0, 2), (1, 1))
    assert told(book) == (1, 0)


def test_a_call_whose_worker_was_lost_before_it_began_takes_its_row_to_the_next():
    book = make_ledger(num_rows=3)
    begun(book, worker=1).end()
    attempt = begun(book, worker=0)
    attempt.worker = 1
    attempt.begin(1)
    attempt.end()

    assert attempt.call == (0, 2)  # That of worker 1.
    assert begun(book, worker=1).call == (0, 3)
    assert [begun(book, worker=0).call for _ in range(2)] == [(2, 1), (1, 2)]


def test_a_call_that_is_given_up_before_it_begins_does_not_begin():
    book = make_ledger()
    attempt = book.attempt()
    attempt.worker = 0

    assert attempt.give_up()
    assert book.close(attempt) == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match=ledger.CLOSED):
        attempt.begin(0)


def test_a_call_that_has_succeeded_is_not_given_up():
    book = make_ledger()
    attempt = begun(book)
    attempt.end()

    assert not attempt.give_up()
    assert not attempt.is_lost


def test_a_call_that_succeeds_once_it_is_given_up_leaves_the_worker_no_row():
    book = make_ledger()
    attempt = begun(book)
    attempt.give_up()
    attempt.end()

    assert begun(book).call == (1, 1)


def test_calls_that_are_still_on_their_way_at_a_restart_keep_nothing():
    book = make_ledger()
    begun(book)
    stuck = begun(book, worker=1)
    book.restart()
    rows = [begun(book, worker) for worker in (0, 1)]
    stuck.end()

    assert [attempt.call for attempt in rows] == [(0, 2), (1, 2)]
    rows[1].end()
    assert begun(book, worker=1).call == (1, 3)


def test_notes_that_come_late_take_nothing_back():
    book = make_ledger()
    attempt = begun(book)
    write(book, attempt, step=2, update=1)
    write(book, attempt, step=1, update=5)

    assert book.close(attempt) == 2 * 256 + 2


def test_calls_that_are_made_again_take_no_row_of_those_that_are_lost():
    book = make_ledger(num_rows=3)
    first, second = begun(book, worker=0), begun(book, worker=1)
    write(book, second, step=4)

    book.close(first)
    for _ in range(3):
        again = begun(book, worker=1)
        write(book, again, step=9)
        again.end()

    assert book.close(second) == 4 * 256 + 1


def test_a_closed_call_is_refused_and_the_next_one_of_its_row_is_not():
    book = make_ledger(num_rows=1)
    attempt = begun(book)
    write(book, attempt, step=2)
    done = book.close(attempt)
    with pytest.raises(tf.errors.InvalidArgumentError, match=ledger.CLOSED):
        write(book, attempt, step=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=ledger.CLOSED):
        write_counts(book, attempt)
    following = begun(book)
    write(book, following, step=0)

    assert following.call[0] == attempt.call[0]
    assert done == 2 * 256 + 1
    assert book.close(following) == 1


def test_every_update_of_a_step_is_due_until_it_is_noted():
    book = make_ledger()
    call = begun(book)
    write(book, call, step=1, update=0)
    done = book.close(call)

    due = {}
    with tracing(book, call, tf.constant(done)):
        assert book.is_again
        for step in range(3):
            with book.at_step(step):
                due |= {
                    (step, update): bool(book.is_due(update)[book.devices[0]]) for update in (0, 1)
                }
        assert bool(book.are_counts_due(book.devices[0]))

    assert not book.is_again
    assert due == {
        (0, 0): False, (0, 1): False, (1, 0): False, (1, 1): True, (2, 0): True, (2, 1): True
    }  # fmt: skip


def test_counts_are_noted_after_all_steps():
    book = make_ledger()
    call = begun(book)
    write(book, call, step=2**23, update=255)
    write_counts(book, call)
    other = begun(book, worker=1)
    write(book, other, step=2**23, update=255)

    assert book.close(call) == ALL
    assert book.close(other) < ALL


def test_a_step_alone_has_come_as_far_as_in_its_call():
    book = make_ledger()
    call = begun(book)
    write(book, call, step=1, update=2)
    done = np.append(book.close(call), [0, ALL])

    assert [ledger.of_step(done, step).tolist() for step in range(3)] == [
        [256, 0, ALL],
        [3, 0, ALL],
        [0, 0, ALL],
    ]


def test_notes_are_waited_for_that_found_their_call_open(monkeypatch):
    monkeypatch.setattr(tf, "where", lambda is_open, row, closed: row)

    def sleep(secs):
        if arriving:
            write(book, call, step=arriving.pop())

    book = make_ledger(sleep=sleep)
    call = begun(book)
    arriving = [2, 1, 0]
    found = book.close(call)

    assert not arriving
    assert found == 2 * 256 + 1
