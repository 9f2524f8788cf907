"""Moving averages: their numbers, and that they go in and come out again."""

import gc
import itertools

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.callbacks import Checkpoint, MovingAverage
from kerasdist.parity import models
from kerasdist.parity.data import examples
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_kind_of_strategy, each_strategy


def train(strategy, average, epochs=2, **arguments):
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, [average], epochs=epochs, **arguments)
    return model


def state_of(average):
    return list(average.get_state().values())


def make_counter(strategy):
    """Returns a model of one weight, from 0, that every update makes larger by 1."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        model.compile(keras.optimizers.SGD(1.0), loss=lambda target, output: -output[:, 0])
    return model


class States(keras.callbacks.Callback):
    """Keeps the averages and the model's weights after every step."""

    def __init__(self, average):
        super().__init__()
        self.average, self.averages, self.weights = average, [], []

    def on_train_batch_end(self, batch, logs=None):
        self.averages.append(state_of(self.average))
        self.weights.append(
            [each.numpy() for each in self.model.variables[: len(self.model.weights)]]
        )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [0.818182, 1.704545, 2.601399]),
        ({"num_updates": False, "decay": 0.5}, [0.5, 1.25, 2.125]),
    ],
)
@each_strategy
def test_a_variable_that_is_1_2_3_at_step_1_2_3_has_the_averages_of_tf_train(
    strategy, arguments, expected
):
    average = MovingAverage(**arguments)
    states = States(average)
    ones = np.ones((12, 1), "float32")
    hand_loop.fit(
        make_counter(strategy), [average, states], data=(ones, ones), batch_size=4, epochs=1
    )

    assert np.ravel(states.averages) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("num_updates", "decay"), [(0, 0.1), (1, 0.1818), (10, 0.55), (100, 0.9182), (1000, 0.99109)]
)
def test_the_decay_warms_up_with_the_number_of_updates(num_updates, decay):
    average = MovingAverage()
    model = make_counter(strategies.get("one device"))
    one = np.ones((1, 1), "float32")
    hand_loop.fit(model, epochs=0, data=(one, one))
    model.optimizer.iterations.assign(num_updates - 1)
    hand_loop.fit(model, [average], data=(one, one), epochs=1)

    assert 1 - state_of(average)[0].item() == pytest.approx(decay, abs=1e-4)


@pytest.mark.parametrize(
    "arguments", [{}, {"num_updates": False, "every_steps": 3}], ids=["warming up", "every 3 steps"]
)
@each_strategy
def test_averages_are_those_of_the_hand_loop_and_weights_are_not_touched(strategy, arguments):
    average = MovingAverage(0.6, **arguments)
    model = train(strategy, average)

    truth = hand_loop.train()
    hand_loop.assert_same(model, truth.weights)
    hand_loop.assert_same(state_of(average), hand_loop.average(truth.trajectory, 0.6, **arguments))


@each_kind_of_strategy
def test_averages_go_on_in_the_next_fit_and_under_steps_per_execution(strategy):
    average = MovingAverage(0.6)
    model = hand_loop.make_model(strategy, steps_per_execution=3)
    hand_loop.fit(model, [average], epochs=1)
    hand_loop.fit(model, [average], epochs=1)

    hand_loop.assert_same(state_of(average), hand_loop.average(hand_loop.train().trajectory, 0.6))


@each_kind_of_strategy
def test_batch_statistics_are_averaged_once_more(strategy):
    model = hand_loop.make(strategy, models.normalized)
    average = MovingAverage(0.6)
    states = States(average)
    start = [each.numpy() for each in model.weights]
    hand_loop.fit(model, [average, states], epochs=1)

    expected = hand_loop.average([start, *states.weights], 0.6)
    by_path = dict(zip([each.path for each in model.weights], expected, strict=True))
    state = average.get_state()
    assert set(state) == set(by_path)
    hand_loop.assert_same(state.values(), [by_path[path] for path in state])


@pytest.mark.filterwarnings("ignore:Batch normalization:UserWarning")
@each_kind_of_strategy
def test_statistics_that_differ_on_the_replicas_are_averaged_as_their_mean(strategy):
    model = hand_loop.make(strategy, models.normalized)
    model.layers[1].synchronized = False
    average = MovingAverage(0.6, trainable=False)
    states = States(average)
    layer = model.layers[1]
    start = [each.numpy() for each in layer.non_trainable_variables]
    hand_loop.fit(model, [average, states], epochs=1)

    paths = [each.path for each in model.weights]
    indices = [paths.index(each.path) for each in layer.non_trainable_variables]
    weights = [[step[index] for index in indices] for step in states.weights]
    hand_loop.assert_same(state_of(average), hand_loop.average([start, *weights], 0.6))


@pytest.mark.parametrize(
    ("arguments", "number"),
    [({}, 8), ({"trainable": False}, 2), ({"batch_statistics": False}, 6)],
    ids=lambda each: str(each),
)
def test_what_is_averaged_can_be_switched(arguments, number):
    model = hand_loop.make(strategies.get("one device"), models.normalized)
    average = MovingAverage(**arguments)
    hand_loop.fit(model, [average], epochs=1)

    assert len(average.get_state()) == number


@pytest.mark.thorough
@each_kind_of_strategy
def test_validation_uses_the_averages_when_asked(strategy):
    average = MovingAverage(0.9, num_updates=False, validate=True)
    plain = hand_loop.make_model(strategy)
    x, y = examples(37)
    history = hand_loop.fit(plain, [average], validation_data=(x, y))
    with average.applied(plain):
        averaged_loss = plain.evaluate(x, y, verbose=0)

    assert history["val_loss"][-1] == pytest.approx(averaged_loss, abs=1e-6)
    assert abs(plain.evaluate(x, y, verbose=0) - averaged_loss) > 1e-3
    hand_loop.assert_same(plain, hand_loop.train().weights)


def test_the_averages_of_the_best_epoch_are_in_the_best_checkpoint(tmp_path, capsys):
    model = hand_loop.make_model(strategies.get("one device"))
    x, y = examples(37)
    checkpoint = Checkpoint(tmp_path, keep_best=1)
    callbacks = [MovingAverage(0.9, validate=True), checkpoint]
    history = hand_loop.fit(model, callbacks, validation_data=(x, y), epochs=3)

    assert checkpoint.best is not None
    kerasdist.warm_start(model, checkpoint.best, averages=True)

    assert model.evaluate(x, y, verbose=0) == pytest.approx(min(history["val_loss"]), abs=1e-6)


@each_kind_of_strategy
def test_validation_uses_the_weights_when_not_asked(strategy):
    average = MovingAverage(0.9, num_updates=False)
    model = hand_loop.make_model(strategy)
    x, y = examples(37)
    history = hand_loop.fit(model, [average], validation_data=(x, y))

    assert history["val_loss"][-1] == pytest.approx(model.evaluate(x, y, verbose=0), abs=1e-6)


@each_kind_of_strategy
def test_a_validation_that_fails_leaves_the_training_weights_in(strategy):
    def fails():
        yield examples(8)
        raise OSError("The disk is gone.")

    average = MovingAverage(0.9, num_updates=False, validate=True)
    model = hand_loop.make_model(strategy)
    with pytest.raises(Exception, match="The disk is gone"):
        hand_loop.fit(model, [average], epochs=1, validation_data=fails())

    hand_loop.assert_same(model, hand_loop.train().trajectory[7])
    hand_loop.assert_same(
        state_of(average),
        hand_loop.average(hand_loop.train().trajectory[:8], 0.9, num_updates=False),
    )


@each_kind_of_strategy
def test_applied_puts_the_averages_in_and_takes_them_out(strategy, tmp_path):
    average = MovingAverage(0.6)
    model = train(strategy, average)
    weights, averages = model.get_weights(), state_of(average)
    x, y = examples()
    with average.applied(model):
        hand_loop.assert_same(model, averages, tolerance=0)
        outputs = model.predict(x, verbose=0)
        loss = model.evaluate(x, y, verbose=0)
        model.save(tmp_path / "averaged.keras")

    hand_loop.assert_same(model, weights, tolerance=0)
    hand_loop.assert_same(state_of(average), averages, tolerance=0)
    loaded = keras.saving.load_model(tmp_path / "averaged.keras")
    hand_loop.assert_same(loaded, averages, tolerance=0)
    np.testing.assert_allclose(outputs, loaded.predict(x, verbose=0), atol=1e-5)
    assert loss == pytest.approx(float(hand_loop.mean_square(averages, x, y)), abs=1e-5)


@each_kind_of_strategy
def test_applied_takes_the_averages_out_after_an_exception(strategy):
    average = MovingAverage(0.6)
    model = train(strategy, average)
    weights, averages = model.get_weights(), state_of(average)
    with pytest.raises(KeyError), average.applied(model):
        raise KeyError

    hand_loop.assert_same(model, weights, tolerance=0)
    hand_loop.assert_same(state_of(average), averages, tolerance=0)
    for values in hand_loop.on_every_replica(strategy, model.trainable_variables):
        hand_loop.assert_same(values, weights, tolerance=0)


def test_ctrl_c_within_a_swap_leaves_the_weights_in(monkeypatch):
    average = MovingAverage(0.6)
    model = train(strategies.get("one device"), average)
    weights, averages = model.get_weights(), state_of(average)
    stock = keras.Variable.assign

    def interrupted_at(number):
        numbers = itertools.count()

        def assign(variable, value):
            stock(variable, value)
            if next(numbers) == number:
                raise KeyboardInterrupt

        return assign

    for number in range(2 * len(weights)):  # In and out again.
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(keras.Variable, "assign", interrupted_at(number))
            with average.applied(model):
                pass
        hand_loop.assert_same(model, weights, tolerance=0)
        hand_loop.assert_same(state_of(average), averages, tolerance=0)
        with average.applied(model):
            hand_loop.assert_same(model, averages, tolerance=0)


def test_the_state_inside_of_applied_is_that_of_the_averages():
    average = MovingAverage(0.6)
    model = train(strategies.get("one device"), average)
    averages = state_of(average)
    with average.applied(model):
        hand_loop.assert_same(state_of(average), averages, tolerance=0)


def test_applied_twice_still_means_the_averages():
    average = MovingAverage(0.6)
    model = train(strategies.get("one device"), average)
    weights, averages = model.get_weights(), state_of(average)
    with average.applied(model):
        with average.applied(model):
            hand_loop.assert_same(model, averages, tolerance=0)
        hand_loop.assert_same(model, averages, tolerance=0)
    hand_loop.assert_same(model, weights, tolerance=0)


@each_kind_of_strategy
def test_training_goes_on_from_a_state_as_if_it_had_not_stopped(strategy, tmp_path):
    average = MovingAverage(0.6)
    model = train(strategy, average, epochs=1)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    restored = MovingAverage(0.6)
    restored.set_state(average.get_state())
    hand_loop.assert_same(state_of(restored), state_of(average), tolerance=0)
    hand_loop.fit(loaded, [restored], epochs=1)

    truth = hand_loop.train()
    hand_loop.assert_same(loaded, truth.weights)
    hand_loop.assert_same(state_of(restored), hand_loop.average(truth.trajectory, 0.6))


@each_kind_of_strategy
def test_a_state_can_be_set_after_fit(strategy):
    average = MovingAverage(0.6)
    model = train(strategy, average)
    state = {path: value + 1 for path, value in average.get_state().items()}
    average.set_state(state)

    with average.applied(model):
        hand_loop.assert_same(model, state.values(), tolerance=0)


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_state_that_does_not_fit_is_refused(is_trained):
    average, source = MovingAverage(), MovingAverage()
    strategy = strategies.get("one device")
    train(strategy, source, epochs=1)
    if is_trained:
        train(strategy, average, epochs=1)
    state = source.get_state()
    path = "hidden/kernel"

    def use(state):
        average.set_state(state)
        train(strategy, average, epochs=1)

    with pytest.raises(ValueError, match=f"lack '{path}'"):
        use({name: value for name, value in state.items() if name != path})
    with pytest.raises(ValueError, match=r"has shape \(5,\), and the variable \(6, 8\)"):
        use(state | {path: np.zeros(5, "float32")})


def test_a_refused_state_changes_no_average():
    average = MovingAverage()
    train(strategies.get("one device"), average, epochs=1)
    before = average.get_state()
    wrong = {path: value + 1 for path, value in before.items()} | {"head/bias": np.zeros(9)}
    with pytest.raises(ValueError, match="head/bias"):
        average.set_state(wrong)

    hand_loop.assert_same(state_of(average), before.values(), tolerance=0)


def test_layers_of_one_path_keep_their_own_averages():
    with strategies.get("one device").scope():
        parts = [
            keras.Sequential([keras.layers.Dense(units, name="dense")], name="part")
            for units in (4, 1)
        ]
        model = TwoParts(*parts)
        model.compile("sgd", "mse")
    average = MovingAverage()
    hand_loop.fit(model, [average], epochs=1)

    state = average.get_state()
    assert len(state) == 4
    average.set_state(state)


class TwoParts(keras.Model):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def call(self, inputs):
        return self.second(self.first(inputs))


@pytest.fixture
def bytes_of_new_variables():
    """Returns a function: the bytes of variables that the test made and that are still alive."""

    def count():
        gc.collect()
        return sum(
            # Of some, the lengths of the first batch, there are a few numbers.
            (each.shape.num_elements() or 0) * each.dtype.size
            for each in gc.get_objects()
            if type(each).__name__ == "ResourceVariable"  # One for each replica.
        )

    gc.collect()
    gc.freeze()
    yield count
    gc.unfreeze()


@pytest.mark.thorough
@each_kind_of_strategy
def test_memory_is_one_more_copy_of_the_averaged_variables_on_every_replica(
    strategy, bytes_of_new_variables
):
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, epochs=1)
    before = bytes_of_new_variables()
    average = MovingAverage()
    hand_loop.fit(model, [average], epochs=1)
    with average.applied(model):
        model.evaluate(*examples(), verbose=0)
    after = bytes_of_new_variables()

    weights = sum(each.nbytes for each in hand_loop.START)
    # Besides: a step function keeps 8 bytes to count examples, and metrics some to start anew.
    assert 0 <= after - before - weights * strategy.num_replicas_in_sync <= 64


def test_averages_count_the_updates_of_the_optimizer_of_a_new_compile():
    strategy = strategies.get("one device")
    average = MovingAverage(0.6, num_updates=False, every_steps=3)
    model = train(strategy, average, epochs=1)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), "mse")
    before, weights = state_of(average), model.get_weights()
    hand_loop.fit(model, [average], epochs=1)

    truth = hand_loop.train(start=weights, update=hand_loop.sgd(0.1, 0)).trajectory[:8]
    expected = [before, *truth[1:]]
    hand_loop.assert_same(
        state_of(average), hand_loop.average(expected, 0.6, num_updates=False, every_steps=3)
    )


def test_averages_move_once_per_step_of_two_optimizers():
    model = hand_loop.make(strategies.get("one device"), models.with_two_optimizers)
    average = MovingAverage(0.5, num_updates=False)
    before = model.get_weights()
    x, y = examples(16)
    hand_loop.fit(model, [average], data=(x, y), epochs=1)

    expected = [(a + b) / 2 for a, b in zip(before, model.get_weights(), strict=True)]
    hand_loop.assert_same(state_of(average), expected)


class Unfreeze(keras.callbacks.Callback):
    """Trains the first layer from the second epoch on."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.layers[0].trainable = epoch > 0
        self.model.make_train_function(force=True)


@each_strategy
def test_layers_may_be_unfrozen_in_the_middle(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
    average = MovingAverage(0.5, num_updates=False)
    begun = model.layers[0].get_weights()
    arguments = {"batch_size": 16, "shuffle": False, "verbose": 0}

    model.fit(*examples(16), epochs=2, callbacks=[Unfreeze(), average], **arguments)

    expected = [(a + b) / 2 for a, b in zip(begun, model.layers[0].get_weights(), strict=True)]
    found = [average.get_state()[each.path] for each in model.layers[0].weights]
    hand_loop.assert_same(found, expected)
    assert len(average.get_state()) == len(model.weights)
    with average.applied(model):
        hand_loop.assert_same(model.layers[0].get_weights(), expected)


def test_a_second_model_is_refused():
    average = MovingAverage()
    train(strategies.get("one device"), average, epochs=1)

    with pytest.raises(ValueError, match=r"of another model.* Make a new one for model 'net'"):
        train(strategies.get("one device"), average, epochs=1)


def test_applied_to_a_model_that_it_does_not_know():
    strategy = strategies.get("one device")
    average = MovingAverage()
    model = hand_loop.make_model(strategy)
    with pytest.raises(RuntimeError, match="no averages of model 'net'"), average.applied(model):
        pass
    train(strategy, average, epochs=1)

    with pytest.raises(RuntimeError, match="no averages of model 'net'"), average.applied(model):
        pass


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"decay": 1.0}, ValueError, "decay=1.0"),
        ({"decay": -0.1}, ValueError, "decay=-0.1"),
        ({"decay": True}, TypeError, "decay=True"),
        ({"decay": "0.9"}, TypeError, "decay='0.9'"),
        ({"every_steps": 0}, ValueError, "every_steps=0"),
        ({"every_steps": 1.5}, TypeError, "every_steps=1.5"),
        ({"every_steps": True}, TypeError, "every_steps=True"),
        ({"num_updates": 0}, TypeError, "num_updates=0"),
        ({"trainable": "no"}, TypeError, "trainable='no'"),
        ({"batch_statistics": None}, TypeError, "batch_statistics=None"),
        ({"validate": 1}, TypeError, "validate=1"),
        ({"trainable": False, "batch_statistics": False}, ValueError, "nothing to average"),
    ],
)
def test_values_out_of_their_range_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        MovingAverage(**arguments)


def test_a_model_without_anything_to_average_is_refused():
    model = hand_loop.make_model(strategies.get("one device"))

    with pytest.raises(ValueError, match=r"nothing to average|no BatchNormalization"):
        hand_loop.fit(model, [MovingAverage(trainable=False)])
