"""Every private name of Keras that is used is where it was, and does what it did."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest
import tensorflow as tf
from keras.src.random import seed_generator

from kerasdist.private import custom_parts, keras_adapter, keras_optimizers, names
from tests import strategies


def test_layers_have_the_names_that_are_used():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 4, 3))

    assert keras_adapter.reduction_axes(layer) == [0, 1]
    assert keras_adapter.losses_added_by(layer) == []
    assert keras_adapter.layers_of(keras.Sequential([layer]))[1:] == [layer]


def test_what_is_made_in_a_scope_says_so_and_what_a_variable_is_made_for():
    makers = []

    class Layer(keras.layers.Layer):
        def build(self, shape):
            makers.extend(keras_adapter.makers())

    strategy = strategies.get("one device")
    with strategy.scope():
        made = [layer := Layer(), keras.metrics.Mean(), keras.optimizers.SGD()]

    layer.build((1, 1))

    assert [keras_adapter.strategy_of(each) for each in made] == [strategy] * 3
    assert keras_adapter.strategy_of(keras.layers.Dense(1)) is None
    assert makers == [layer]


def test_a_metric_that_is_taken_into_a_scope_keeps_what_it_has_counted():
    metric = keras.metrics.Mean()
    metric.update_state([3.0, 5.0])

    keras_adapter.adopt_variables(metric.variables, strategies.get("3 replicas"))

    assert float(metric.result()) == 4


def test_a_thread_inherits_the_settings_of_another():
    keras.config.set_dtype_policy("mixed_bfloat16")
    state = dict(keras_adapter.thread_state())
    keras.config.set_dtype_policy("float32")

    def policy():
        keras_adapter.inherit(state)
        return keras.config.dtype_policy().name

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(policy).result() == "mixed_bfloat16"


def test_the_generator_of_numbers_without_a_seed_is_found():
    generator = seed_generator.global_seed_generator()

    assert keras_adapter.known_global_seed_generator(keras_adapter.thread_state()) is generator


def test_a_sum_over_the_batch_is_told_from_what_a_layer_adds_itself():
    seen = []

    def ask(layer):
        seen.append(keras_adapter.is_sum_over_batch(layer))

    class Layer(keras.layers.Layer):
        def add_loss(self, loss):  # Where the route is.
            ask(self)

        def call(self, inputs):
            self.add_loss(1.0)
            return inputs

    Layer(activity_regularizer="l2")(tf.ones([2, 3]))

    # Keras' own comes second, and is a mean since 3.14.
    assert seen == [False, names.KERAS < (3, 14)]


@pytest.mark.parametrize("name", keras_adapter.STEPS_OF_MODEL_CHECKPOINT)
def test_model_checkpoint_has_the_names_that_are_used(name):
    assert hasattr(keras.callbacks.ModelCheckpoint("model.keras"), name)


def test_strategy_of_knows_models_and_optimizers():
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        model, optimizer = keras.Sequential([]), keras.optimizers.SGD()

    assert keras_adapter.strategy_of(model) is strategy
    assert keras_adapter.strategy_of(optimizer) is strategy
    assert keras_adapter.strategy_of(keras.Sequential([])) is None


def test_batch_normalizations_are_found_in_nested_models():
    inner = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.layers.Dense(2), keras.Sequential([inner])])

    assert keras_adapter.batch_normalizations_of(model) == [inner]


def test_random_layers_are_found_in_nested_models():
    inner = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.layers.Dense(2), keras.Sequential([inner])])

    assert keras_adapter.layers_with_random_numbers_of(model) == [inner]


@pytest.mark.parametrize("shape", [(2, 1), (2, 3), (2, 3, 1)])
def test_masked_weights_are_0_where_the_mask_is_false(shape):
    mask = tf.constant([[True, False, False], [True, True, False]])

    weights = keras_adapter.masked_weights(2 * tf.ones(shape), mask)

    assert weights.numpy().tolist() == [[2, 0, 0], [2, 2, 0]]
    assert keras_adapter.masked_weights(mask, None) is mask


def test_class_weight_function_looks_up_the_class():
    weigh = keras_adapter.class_weight_function({0: 0.5, 1: 2.0})

    _, _, weights = weigh(tf.zeros([2, 1]), tf.constant([1, 0]))

    assert weights.numpy().tolist() == [2.0, 0.5]


def _compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_model_keeps_its_optimizer_when_it_is_saved_to_h5(tmp_path):
    model = _compiled()

    with keras_adapter.compile_config_kept(model):
        model.save(tmp_path / "model.h5")

    assert "optimizer" in model.get_compile_config()


def test_first_values_of_variables_are_computed_in_the_context():
    entered = []

    @contextlib.contextmanager
    def context():
        entered.append(True)
        yield

    with keras_adapter.around_initializers(context):
        keras.layers.Dense(1).build((None, 2))

    assert len(entered) == 2  # The kernel and the bias.


def test_a_model_is_built_without_its_optimizer():
    model = _compiled()

    keras_adapter.build_from_spec(model, (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1))))
    assert not model.optimizer.built

    keras_optimizers.build_optimizer(model)
    assert model.optimizer.built


def test_the_loss_of_predictions_made_before_is_that_of_the_step():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    x, y = tf.ones([4, 2]), tf.ones([4, 3])

    loss = keras_adapter.compute_loss(model, x, y, model(x), None)

    assert float(loss) == pytest.approx(model.train_on_batch(x, y))


def test_a_mask_of_an_output_is_seen():
    masked, other = keras.layers.Masking()(tf.ones([1, 2, 3])), tf.ones([1, 2, 3])
    assert keras_adapter.mask_of(masked).shape == (1, 2)
    assert keras_adapter.mask_of(other) is None
    keras_adapter.set_mask(other, keras_adapter.mask_of(masked))
    assert keras.src.backend.get_keras_mask(other) is keras_adapter.mask_of(masked)


def test_losses_are_replaced_where_keras_calls_them():
    model = _compiled()
    y, predictions = tf.zeros([2, 1]), tf.ones([2, 1])
    losses = custom_parts.compiled_losses_of(model)
    losses.build(y, predictions)

    keras_adapter.replace_losses(losses, lambda loss: lambda *args: 3 * loss(*args))

    assert losses(y, predictions) == 3.0
