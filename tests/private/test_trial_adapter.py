"""What a trial replaces; tests/training/trial/test_fit.py shows the rest."""

import contextlib

import tensorflow as tf

from kerasdist.private import trial_adapter


def test_what_would_be_traced_into_a_graph_of_its_own_is_known():
    depth = []

    @contextlib.contextmanager
    def enter():
        depth.append("inner")
        yield
        depth.pop()

    def look(*_):
        return tf.constant(len(depth))

    with trial_adapter.inner_graphs_entered(enter):
        found = [
            look(),
            tf.cond(tf.constant(True), look, look),
            tf.while_loop(lambda number: number < 1, lambda _: [look()], [0])[0],
            tf.map_fn(look, tf.zeros([1], tf.int32))[0],
        ]

    assert [int(each) for each in found] == [0, 1, 1, 1]
    assert int(tf.cond(tf.constant(True), look, look)) == 0
