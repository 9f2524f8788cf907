"""The same batches in the same order as plain Keras, and the same end of an epoch.

One device gives the numbers of plain Keras to the last bit. Clusters are in tests/cluster.
"""

import keras
import pytest

from kerasdist.strategies.mirrored import MirroredStrategy
from kerasdist.strategies.one_device import OneDeviceStrategy
from tests import strategies
from tests.cases import marked
from tests.data_order import CASES, FURTHER, check_equal, draw, outcome_of, truth
from tests.strategies import each_strategy


@pytest.mark.thorough
@each_strategy
@pytest.mark.parametrize("name", marked(CASES, exhaustive=FURTHER))
def test_data_comes_as_in_plain_keras(name, strategy):
    is_one_device = strategy is strategies.get("one device")

    check_equal(outcome_of(name, strategy), truth(name), atol=0 if is_one_device else 1e-5)


@pytest.mark.parametrize(
    ("strategy_class", "devices"),
    [(OneDeviceStrategy, "CPU:0"), (MirroredStrategy, ["CPU:0", "CPU:1"])],
)
def test_making_a_strategy_draws_no_random_number(strategy_class, devices):
    keras.utils.set_random_seed(5)
    expected = draw()

    keras.utils.set_random_seed(5)
    strategy_class(devices)  # `make_strategy` may have made it before.

    check_equal({"numbers": draw()}, {"numbers": expected}, atol=0)
