"""How far calls have come, here on a parameter server in this process; losses are for clusters."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.parameter_servers import ledger
from kerasdist.training.parameter_servers.ledger import ALL, Ledger

DEVICE = "/device:CPU:0"


def make_ledger(num_rows=2, sleep=lambda secs: None):
    return Ledger([DEVICE], num_rows, sleep=sleep)


def write(book, call, step, update=0):
    with book.tracing(tf.constant(call, tf.int64)), book.at_step(step):
        book.write(book.devices[0], book.note(update))


def write_counts(book, call):
    with book.tracing(tf.constant(call, tf.int64)):
        book.write(book.devices[0], book.note_of_counts())


def test_a_call_that_has_not_begun_is_done_nowhere():
    book = make_ledger()
    first = book.next_call()
    write(book, first, step=7)
    calls = [book.next_call() for _ in range(2)]

    assert [book.close(call).tolist() for call in calls] == [[0], [0]]  # One is of its row.


def test_notes_that_come_late_take_nothing_back():
    book = make_ledger()
    call = book.next_call()
    write(book, call, step=2, update=1)
    write(book, call, step=1, update=5)

    assert book.close(call) == 2 * 256 + 2


def test_calls_that_are_made_again_take_no_row_of_those_that_run():
    book = make_ledger(num_rows=2)
    first, second = book.next_call(), book.next_call()
    write(book, second, step=4)

    book.close(first)
    write(book, book.next_call(again=True), step=9)
    write(book, book.next_call(), step=0)

    assert book.close(second) == 4 * 256 + 1


def test_a_closed_call_is_refused_and_the_next_one_of_its_row_is_not():
    book = make_ledger(num_rows=1)
    call = book.next_call()
    write(book, call, step=2)
    done = book.close(call)
    with pytest.raises(tf.errors.InvalidArgumentError, match=ledger.CLOSED):
        write(book, call, step=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=ledger.CLOSED):
        write_counts(book, call)
    following = book.next_call()
    write(book, following, step=0)

    assert book.close(call) == 0 != done  # The row is of `following`.
    assert book.close(following) == 1


def test_every_update_of_a_step_is_due_until_it_is_noted():
    book = make_ledger()
    call = book.next_call()
    write(book, call, step=1, update=0)
    done = book.close(call)

    due = {}
    with book.tracing(tf.constant(call, tf.int64), tf.constant(done)):
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
    call = book.next_call()
    write(book, call, step=2**23, update=255)
    write_counts(book, call)
    other = book.next_call()
    write(book, other, step=2**23, update=255)

    assert book.close(call) == ALL
    assert book.close(other) < ALL


def test_a_step_alone_has_come_as_far_as_in_its_call():
    book = make_ledger()
    call = book.next_call()
    write(book, call, step=1, update=2)
    done = np.append(book.close(call), [0, ALL])

    assert [ledger.of_step(done, step).tolist() for step in range(3)] == [
        [256, 0, ALL],
        [3, 0, ALL],
        [0, 0, ALL],
    ]


def test_notes_are_waited_for_that_found_their_call_open(monkeypatch):
    monkeypatch.setattr(tf.raw_ops, "Assert", lambda **given: tf.no_op())

    def sleep(secs):
        if arriving:
            write(book, call, step=arriving.pop())

    book = make_ledger(sleep=sleep)
    call = book.next_call()
    arriving = [2, 1, 0]
    found = book.close(call)

    assert not arriving
    assert found == 2 * 256 + 1
