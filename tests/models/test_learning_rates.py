"""The schedules against the legacy formulas."""

import keras
import numpy as np
import pytest
from absl import flags

import kerasdist
from kerasdist import callbacks
from models import learning_rates
from models.usage_error import UsageError


def parse(*argv):
    values = flags.FlagValues()
    learning_rates.define_flags(values)
    flags.DEFINE_integer("batch_size", 32, "Per clone.", flag_values=values)
    values(["", *argv])
    return values


def rates(schedule, steps):
    return [float(schedule(step)) for step in steps]


def test_the_default_falls_in_stairs_counted_per_clone():
    schedule = learning_rates.build(parse(), num_examples=1_281_167)

    assert rates(schedule, [80_071, 80_072]) == pytest.approx([0.01, 0.0094])


def test_workers_that_step_together_share_the_epochs():
    schedule = learning_rates.build(parse(), num_examples=1_281_167, num_to_aggregate=2)

    assert rates(schedule, [40_035, 40_036]) == pytest.approx([0.01, 0.0094])


@pytest.mark.parametrize(("num_to_aggregate", "decay_steps"), [(25, 3202), (50, 1601), (100, 800)])
def test_the_distributed_inception_has_the_published_schedule(num_to_aggregate, decay_steps):
    values = parse("--learning_rate=0.045")

    schedule = learning_rates.build(
        values, num_examples=1_281_167, num_to_aggregate=num_to_aggregate, whole_steps=True
    )

    assert rates(schedule, [decay_steps - 1, decay_steps]) == pytest.approx([0.045, 0.0423])


def test_slims_steps_between_two_decays_need_not_be_whole():
    steps = np.arange(785, dtype="float32")
    schedule = learning_rates.build(parse(), num_examples=29 * 32, num_to_aggregate=3)

    expected = 0.01 * 0.94 ** np.floor(steps / np.float32(58 / 3))
    np.testing.assert_allclose(np.asarray(schedule(steps)), expected, rtol=1e-5)


def test_polynomial_goes_straight_to_the_end():
    values = parse("--learning_rate_decay_type=polynomial", "--num_epochs_per_decay=1")
    schedule = learning_rates.build(values, num_examples=3200)

    assert rates(schedule, [0, 50, 100, 200]) == pytest.approx([0.01, 0.00505, 0.0001, 0.0001])


@pytest.mark.parametrize("decay_type", ["exponential", "polynomial"])
def test_a_decay_that_no_training_reaches_is_none(decay_type):
    values = parse(f"--learning_rate_decay_type={decay_type}", "--num_epochs_per_decay=1e308")

    schedule = learning_rates.build(values, num_examples=3200)

    assert rates(schedule, [0, 1000]) == pytest.approx([0.01, 0.01], rel=1e-5)


def test_fixed_comes_from_the_flags_also_where_a_run_resumes(tmp_path):
    def fit(rate, epochs, decay_type="fixed"):
        values = parse(f"--learning_rate_decay_type={decay_type}", f"--learning_rate={rate}")
        schedule = learning_rates.build(values, num_examples=3200)
        with kerasdist.make_strategy().scope():
            model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(schedule), "mse")
        checkpoint = callbacks.Checkpoint(tmp_path)
        ones = np.ones([4, 1], "float32")
        model.fit(ones, ones, epochs=epochs, callbacks=[checkpoint], verbose=0)
        plan = kerasdist.plan_training(model, global_batch_size=4, num_examples=4)
        return float(model.optimizer.learning_rate), int(model.optimizer.iterations), str(plan)

    *first, plan = fit(0.5, 1)
    assert first == [0.5, 1]
    assert "learning rate Fixed(learning_rate=0.5)" in plan
    assert fit(0.25, 2)[:2] == (0.25, 2)
    assert fit(0.125, 3, "exponential")[:2] == (0.125, 3)


def test_an_unknown_type_is_answered_with_the_names():
    with pytest.raises(UsageError, match=r"'cosine'. Valid names: exponential, fixed, polynomial"):
        learning_rates.check(parse("--learning_rate_decay_type=cosine"))
