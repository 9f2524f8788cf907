"""Callbacks together: their order, every way to train, nothing stale, and where they cannot act."""

import re
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.callbacks import (
    Checkpoint,
    GradientAccumulation,
    GradientClipping,
    GradientMultipliers,
    LossAverages,
    MovingAverage,
    StopOnNonFinite,
    TrainableScopes,
)
from kerasdist.parity import models
from kerasdist.parity.data import examples
from kerasdist.training.hooks.update_callback import UpdateCallback
from tests import strategies
from tests.callbacks import hand_loop
from tests.cases import exhaustive
from tests.strategies import each_kind_of_strategy, each_strategy

pytestmark = pytest.mark.thorough


def stop():
    # Stops all training, to show whether a callback acts.
    return GradientClipping(norm=1e-9)


def multiply(gradients):
    return hand_loop.multiply(gradients, (1, 1, 3, 3))


def clip(gradients):
    return hand_loop.clip_norm(gradients, 0.3)


@each_kind_of_strategy
def test_multiply_then_clip_and_clip_then_multiply(strategy):
    first, second = hand_loop.make_model(strategy), hand_loop.make_model(strategy)
    multipliers, clipping = GradientMultipliers({"head/.*": 3.0}), GradientClipping(norm=0.3)
    hand_loop.fit(first, [multipliers, clipping])
    hand_loop.fit(second, [clipping, multipliers])

    hand_loop.assert_same(first, hand_loop.train(lambda g, step: clip(multiply(g))).weights)
    hand_loop.assert_same(second, hand_loop.train(lambda g, step: multiply(clip(g))).weights)
    assert hand_loop.largest_difference(first.get_weights(), second.get_weights()) > 0.01


def everything(average):
    return [
        GradientMultipliers({".*head/.*": 3.0}),
        TrainableScopes([".*/kernel"]),
        GradientAccumulation(steps=3),
        LossAverages(),
        GradientClipping(norm=0.3),
        average,
    ]


def everything_by_hand(update=None):
    return hand_loop.train(
        lambda gradients, step: clip(hand_loop.multiply(gradients, (1, 0, 3, 0))),
        batches=hand_loop.in_groups(hand_loop.global_batches(), 3),
        update=update,
    )


def check_everything(strategy, *, update=None, tolerance=1e-5, **arguments):
    average = MovingAverage(0.6)
    model = hand_loop.make_model(strategy, **arguments)
    hand_loop.fit(model, everything(average))

    truth = everything_by_hand(update)
    hand_loop.assert_same(model, truth.weights, tolerance)
    trained = hand_loop.average(truth.trajectory, 0.6)
    hand_loop.assert_same(average.get_state().values(), trained, tolerance)


@each_strategy
def test_all_together_give_the_weights_of_the_hand_loop(strategy):
    check_everything(strategy)


@pytest.mark.parametrize(
    "arguments",
    [
        *exhaustive({"steps_per_execution": 3}, {"own_train_step": True}),
        {"own_train_step": True, "steps_per_execution": 3},
        {"run_eagerly": True},
        # Clipping scaled gradients would leave next to nothing of them.
        {"dtype": "mixed_float16", "tolerance": 5e-3},
        {"optimizer": lambda: keras.optimizers.Adam(0.01), "update": hand_loop.adam()},
    ],
    ids=lambda arguments: ", ".join(arguments),
)
def test_all_together_under_every_way_to_train(arguments):
    check_everything(strategies.get("2 replicas"), **arguments)


@pytest.mark.filterwarnings("ignore:.*XLA drops GradientClipping:UserWarning")
def test_all_together_under_xla():
    check_everything(strategies.get("one device"), jit_compile=True)


def test_the_truth_of_all_together_differs_from_training_without_them():
    weights = everything_by_hand().weights

    assert hand_loop.largest_difference(weights, hand_loop.train().weights) > 0.05
    assert hand_loop.largest_difference(weights, hand_loop.START) > 0.05


class Recorder(UpdateCallback):
    """Keeps the types of the gradients that pass it."""

    def update(self, gradients_and_variables, apply):
        self.types = [type(gradient) for gradient, _ in gradients_and_variables]
        apply(gradients_and_variables)


@pytest.mark.parametrize(
    "callback",
    [
        lambda: GradientMultipliers({".*": 0.5}),
        lambda: GradientClipping(norm=0.1),
        lambda: GradientClipping(global_norm=0.1),
        lambda: GradientClipping(value=0.1),
        lambda: TrainableScopes([".*"]),
    ],
    ids=["multiply", "norm", "global_norm", "value", "scopes"],
)
def test_sparse_gradients_stay_sparse(callback):
    recorder = Recorder()
    model = hand_loop.make_words_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [callback(), recorder], data=hand_loop.words(), epochs=1)

    assert recorder.types[0] is tf.IndexedSlices
    assert not any(kind is tf.IndexedSlices for kind in recorder.types[1:])


@each_kind_of_strategy
def test_sparse_gradients_give_the_weights_of_dense_ones(strategy):
    model = hand_loop.make_words_model(strategy)
    factors = {".*embedding.*": 3.0}
    callbacks = [GradientMultipliers(factors), GradientClipping(norm=0.1)]
    hand_loop.fit(model, callbacks, data=hand_loop.words())

    truth = hand_loop.train(
        lambda g, step: hand_loop.clip_norm(hand_loop.multiply(g, (3, 1, 1)), 0.1),
        batches=hand_loop.global_batches(data=hand_loop.words()),
        loss=hand_loop.cross_entropy,
        start=hand_loop.WORDS_START,
        update=hand_loop.adam(),
    )
    hand_loop.assert_same(model, truth.weights)


@each_kind_of_strategy
def test_every_fit_has_its_own_callbacks(strategy):
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, [GradientClipping(norm=0.3)], epochs=1)
    hand_loop.fit(model, epochs=1)
    hand_loop.fit(model, [GradientMultipliers({"head/.*": 3.0})], epochs=1)
    hand_loop.fit(model, [GradientClipping(norm=0.1)], epochs=1)

    def change(gradients, step):
        by_fit = (clip, list, multiply, lambda g: hand_loop.clip_norm(g, 0.1))
        return by_fit[step // 7](gradients)

    truth = hand_loop.train(change, batches=hand_loop.global_batches(epochs=4))
    hand_loop.assert_same(model, truth.weights)


def test_train_on_batch_after_fit_is_without_the_callbacks_of_fit():
    model = hand_loop.make_model(strategies.get("2 replicas"), lambda: keras.optimizers.SGD(0.1))
    hand_loop.fit(model, [stop()], epochs=1)
    model.train_on_batch(*hand_loop.global_batches()[0])

    truth = hand_loop.train(update=hand_loop.sgd(0.1, 0)).trajectory[1]
    hand_loop.assert_same(model, truth)


def test_train_on_batch_after_a_fit_that_failed_is_without_its_callbacks():
    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyError("stop")

    model = hand_loop.make_model(strategies.get("2 replicas"), lambda: keras.optimizers.SGD(0.1))
    # While the error is kept, as a notebook does, so are the frames of the fit that failed.
    with pytest.raises(KeyError) as error:
        hand_loop.fit(model, [stop(), Fails()])
    model.train_on_batch(*hand_loop.global_batches()[0])

    truth = hand_loop.train(update=hand_loop.sgd(0.1, 0)).trajectory[1]
    hand_loop.assert_same(model, truth)
    del error


@each_kind_of_strategy
def test_training_goes_on_after_loading(strategy, tmp_path):
    def callbacks():
        return [GradientMultipliers({"head/.*": 3.0}), GradientClipping(norm=0.3)]

    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, callbacks(), epochs=1)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    hand_loop.fit(loaded, callbacks(), epochs=1)

    hand_loop.assert_same(loaded, hand_loop.train(lambda g, step: clip(multiply(g))).weights)


def test_the_saved_model_is_a_plain_keras_model(tmp_path):
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, everything(MovingAverage()), epochs=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        config = archive.read("config.json")

    assert b"kerasdist" not in config
    hand_loop.assert_same(loaded, model.get_weights(), tolerance=0)
    hand_loop.fit(loaded, epochs=1)  # Plain Keras trains it on.


def test_a_subclassed_model_that_has_no_variables_yet():
    model = hand_loop.make(strategies.get("2 replicas"), models.subclassed)
    average = MovingAverage(0.6)
    callbacks = [GradientMultipliers({".*": 3.0}), GradientClipping(norm=0.3), average]
    hand_loop.fit(model, [*callbacks, TrainableScopes([".*/kernel"]), LossAverages()])

    assert len(average.get_state()) == 4


def test_the_plan_prints_the_pipeline_in_list_order():
    model = hand_loop.make_model(strategies.get("2 replicas"))
    average = MovingAverage(0.99)
    plan = kerasdist.plan_training(model, global_batch_size=16, callbacks=everything(average))

    (update,) = re.findall(r"update +(.*)", str(plan))
    steps = (
        "sum of 2 gradients",
        "multiply",
        "train",
        "accumulate 3",
        "clip norm=0.3",
        "then average",
    )
    positions = [update.index(step) for step in steps]
    assert positions == sorted(positions)


def test_the_plan_prints_another_order_as_another_pipeline():
    model = hand_loop.make_model(strategies.get("one device"))
    callbacks = [GradientClipping(norm=0.3), GradientMultipliers({"head/.*": 3.0})]
    plan = kerasdist.plan_training(model, global_batch_size=16, callbacks=callbacks)

    assert re.search(r"update +gradient, clip norm=0.3, multiply head/\.\*", str(plan))


ALL = {
    "multipliers": lambda: GradientMultipliers({".*": 2.0}),
    "clipping": lambda: GradientClipping(norm=1.0),
    "accumulation": lambda: GradientAccumulation(steps=2),
    "average": MovingAverage,
    "losses": LossAverages,
    "scopes": lambda: TrainableScopes([".*"]),
}
each_callback = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


@each_callback
def test_a_callback_that_is_given_twice_is_refused(make):
    callback = make()
    model = hand_loop.make_model(strategies.get("2 replicas"))

    with pytest.raises(ValueError, match=f"same {type(callback).__name__} is given twice"):
        hand_loop.fit(model, [callback, callback])


def test_two_callbacks_of_one_class_both_act():
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [GradientMultipliers({"head/.*": 1.5}) for _ in range(2)])

    truth = hand_loop.train(lambda g, step: hand_loop.multiply(g, (1, 1, 2.25, 2.25)))
    hand_loop.assert_same(model, truth.weights)


@each_callback
def test_a_model_without_a_strategy_is_refused(make):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)], name="plain")
    model.compile("sgd", "mse")
    callback = make()

    with pytest.raises(RuntimeError, match=f"{type(callback).__name__} .*'plain'.*outside"):
        hand_loop.fit(model, [callback])


def test_a_model_of_tensorflows_own_strategy_is_refused():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    with pytest.raises(
        RuntimeError, match=r"GradientClipping .* model '.*', which was created outside"
    ):
        hand_loop.fit(model, [stop()])


@each_callback
def test_a_model_that_is_not_compiled_is_refused(make):
    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])

    with pytest.raises(ValueError, match="compile"):
        hand_loop.fit(model, [make()])


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_evaluate_and_predict_refuse_what_acts_on_updates(method):
    model = hand_loop.make_model(strategies.get("2 replicas"))
    x, y = examples()
    arguments = (x, y) if method == "evaluate" else (x,)

    with pytest.raises((RuntimeError, ValueError), match="GradientClipping"):
        getattr(model, method)(*arguments, callbacks=[stop()], verbose=0)


@pytest.mark.parametrize("arguments", [{}, {"add_history": True}], ids=["bare", "with history"])
def test_callbacks_in_a_list_of_kerass_own_act_too(arguments):
    model = hand_loop.make_model(strategies.get("2 replicas"))
    model.history = keras.callbacks.History()  # `fit` returns it; Keras' bare list makes none.
    x, y = examples()
    callbacks = keras.callbacks.CallbackList([stop()], model=model, **arguments)
    model.fit(x, y, callbacks=callbacks, verbose=0)

    hand_loop.assert_same(model, hand_loop.START)


def test_a_train_step_that_does_without_the_optimizer_is_refused():
    class UpdatesByHand(keras.Model):
        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(keras.ops.square(self(x) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            for gradient, variable in zip(gradients, self.trainable_variables, strict=True):
                variable.assign_sub(0.1 * gradient)
            return {"loss": loss}

    with strategies.get("one device").scope():
        inputs = keras.Input((6,))
        model = UpdatesByHand(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd")

    with pytest.raises((RuntimeError, ValueError), match="GradientClipping"):
        hand_loop.fit(model, [stop()])


def test_a_model_with_nothing_to_train_is_taken(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    model.trainable = False
    weights = model.get_weights()

    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        hand_loop.fit(model, [stop(), StopOnNonFinite(), Checkpoint(tmp_path, every_steps=2)])

    hand_loop.assert_same(model, weights)


def test_clipping_what_is_left_of_a_train_step_with_two_optimizers():
    model = hand_loop.make(strategies.get("one device"), models.with_two_optimizers)
    hand_loop.fit(model, [TrainableScopes([".*/head/.*"]), GradientClipping(norm=1.0)])


@pytest.mark.exhaustive
@each_strategy
def test_weights_are_the_same_on_every_replica(strategy):
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, everything(MovingAverage()))

    first, *others = hand_loop.on_every_replica(strategy, model.trainable_variables)
    for other in others:
        assert all(np.array_equal(*pair) for pair in zip(first, other, strict=True))
