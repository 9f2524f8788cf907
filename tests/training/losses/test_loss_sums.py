"""Losses that are added up in the steps, and read now and then."""

import pytest
import tensorflow as tf

from kerasdist.training.losses.loss_sums import LossSums
from tests import strategies


def test_the_last_losses_and_the_means_since_the_last_look():
    sums = LossSums(strategies.get("one device"))
    reader = sums.reader()
    add = tf.function(lambda total, head: sums.add({"loss": total, "head_loss": head}))
    for total, head in ((3.0, 1.0), (1.0, 0.5)):
        add(tf.constant(total), tf.constant(head))

    last, means = reader.take()
    assert last == {"loss": 1.0, "head_loss": 0.5}
    assert means == {"loss": 2.0, "head_loss": 0.75}

    add(tf.constant(float("nan")), tf.constant(1.0))
    reader.take()
    add(tf.constant(5.0), tf.constant(1.0))
    assert reader.take()[1] == {"loss": 5.0, "head_loss": 1.0}  # NaN is of the look before.


def test_nothing_before_there_is_a_loss():
    sums = LossSums(strategies.get("one device"))
    sums.add({})

    assert sums.reader().take() == ({}, {})


def test_losses_of_another_dtype():
    sums = LossSums(strategies.get("one device"))
    sums.add({"loss": tf.constant(0.5, tf.float16)})

    assert sums.reader().take()[0] == {"loss": pytest.approx(0.5)}


def test_each_reader_has_the_means_since_its_own_last_look():
    sums = LossSums(strategies.get("one device"))
    early, late = sums.reader(), sums.reader()
    for loss in (4.0, 2.0):
        sums.add({"loss": tf.constant(loss)})

    assert early.take() == ({"loss": 2.0}, {"loss": 3.0})
    newest = sums.reader()
    sums.add({"loss": tf.constant(6.0)})

    assert early.take()[1] == newest.take()[1] == {"loss": 6.0}
    assert late.take() == ({"loss": 6.0}, {"loss": 4.0})
