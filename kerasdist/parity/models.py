"""The small models of the parity cases. Each function returns a compiled model."""

from typing import Any

import keras

from kerasdist.parity import own_parts


def regression(optimizer: Any = None, **compile_arguments: Any):
    """Returns a network of two layers, float32 [batch, 6] -> [batch, 1]."""
    model = _network()
    model.compile(
        optimizer or _sgd(),
        loss="mse",
        metrics=["mae", keras.metrics.RootMeanSquaredError()],
        **compile_arguments,
    )
    return model


def with_metric_functions():
    """Returns a network with metrics that do not add up over the parts of a batch."""
    model = _network()
    metrics = [own_parts.root_mean_square, keras.losses.LogCosh()]
    model.compile(_sgd(), loss="mse", metrics=metrics, weighted_metrics=[own_parts.largest_ratio])
    return model


def with_metric_classes():
    """Returns a network with metrics whose states do not add up over batches either."""
    model = _network()
    metrics = {
        "metrics": [own_parts.LargestError()],
        "weighted_metrics": [own_parts.LargestError(name="top")],
    }
    model.compile(_sgd(), loss="mse", **metrics)
    return model


def regularized():
    """Returns a network whose weights are regularized."""
    model = _network(kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02))
    model.compile(_sgd(), loss="mse")
    return model


def activity_regularized():
    """Returns a network whose activations are regularized."""
    model = _network(activity_regularizer=keras.regularizers.L2(0.05))
    model.compile(_sgd(), loss="mse")
    return model


def constrained():
    """Returns a network whose weights have a largest norm."""
    model = _network(kernel_constraint=keras.constraints.MaxNorm(0.7))
    model.compile(_sgd(), loss="mse")
    return model


def scheduled():
    """Returns a network whose learning rate falls in steps."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.2, 3, 0.5, staircase=True)
    return regression(keras.optimizers.SGD(schedule, momentum=0.9))


def classification():
    """Returns a network float32 [batch, 6] -> [batch, 3 logits], for labels int [batch]."""
    model = _network(outputs=3)
    model.compile(_sgd(), loss=_cross_entropy(), weighted_metrics=["accuracy"])
    return model


def with_weighted_metrics():
    """Returns a network with a plain and a weighted metric."""
    model = _network()
    model.compile(_sgd(), loss="mse", metrics=["mae"], weighted_metrics=["mse"])
    return model


def two_outputs():
    """Returns a network with the outputs "a" [batch, 1] and "b" [batch, 3]."""
    model = _two_headed()
    model.compile(
        _sgd(),
        loss={"a": "mse", "b": _cross_entropy()},
        loss_weights={"a": 0.3, "b": 2.0},
        metrics={"a": ["mae"], "b": ["accuracy"]},
    )
    return model


def sum_and_mean():
    """Returns a network with one loss that is summed over the batch and one that is averaged."""
    model = _two_headed()
    loss = {"a": keras.losses.MeanSquaredError(reduction="sum"), "b": _cross_entropy()}
    model.compile(keras.optimizers.SGD(0.01), loss=loss)
    return model


def reduced(reduction: str):
    """Returns a network whose loss is reduced in another way than to the mean over examples."""
    model = _network()
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss=loss, metrics=["mae"])
    return model


def overlapping():
    """Returns a network whose loss divides sums over the batch, for labels 0 and 1 [batch, 1]."""
    model = _network(last_activation="sigmoid")
    model.compile(_sgd(), loss=keras.losses.Dice(), metrics=[keras.losses.dice])
    return model


def circled():
    """Returns a network whose loss compares all examples, for labels int [batch]."""
    network = _network(outputs=3)
    model = keras.Sequential([*network.layers, keras.layers.UnitNormalization()])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss=keras.losses.Circle(gamma=4.0))
    return model


def contrasted():
    """Returns a network whose own loss compares the examples of the batch."""
    model = _network(outputs=3)

    def loss(y: Any, prediction: Any):
        similarities = keras.ops.matmul(prediction, keras.ops.transpose(prediction * y))
        return -keras.ops.diagonal(keras.ops.log_softmax(similarities))

    model.compile(_sgd(), loss=loss)
    return model


def with_added_loss():
    """Returns a network with a layer that adds its own loss."""
    inputs = keras.Input((6,))
    hidden = own_parts.AddsLoss(8)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(_sgd(), loss="mse", metrics=["mae"])
    return model


def centered():
    """Returns a network with a layer that subtracts part of the mean over the batch."""
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8), own_parts.SubtractsMean(), keras.layers.Dense(1)]
    )
    model.compile(_sgd(), loss="mse")
    return model


def looping():
    """Returns a network that reads weights in loops, in a layer and in the loss."""
    head = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((6,)), own_parts.Iterates(), head])

    def loss(y: Any, prediction: Any):
        def add(_: Any, total: Any):
            return total + keras.ops.sum(keras.ops.square(head.kernel))

        penalty = keras.ops.fori_loop(0, 3, add, 0.0)
        return keras.losses.mean_squared_error(y, prediction) + 0.01 * penalty

    model.compile(_sgd(), loss=loss)
    return model


def masked():
    """Returns a network int [batch, 5 words, 0 masked] -> [batch, 5, 3 logits]."""
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.SimpleRNN(4, return_sequences=True),
            keras.layers.Dense(3),
        ]
    )
    model.compile(_sgd(), loss=_cross_entropy(), weighted_metrics=["accuracy"])
    return model


def embedding():
    """Returns a network int [batch, 5 words] -> [batch, 3 logits], with sparse gradients."""
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(20, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), loss=_cross_entropy(), metrics=["accuracy"])
    return model


def mixed(policy: str):
    """Returns a network that computes in 16 bits."""
    model = _network(dtype=policy, input_dtype="float32")
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    return model


def partly_frozen():
    """Returns a network whose first layer is not trained."""
    model = _network()
    model.layers[0].trainable = False
    model.compile(_sgd(), loss="mse", metrics=["mae"])
    return model


def with_unused_variable():
    """Returns a network with a trainable variable that the loss does not depend on."""
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(1)(own_parts.HasUnusedVariable(8)(inputs)))
    model.compile(_sgd(), loss="mse")
    return model


def normalized():
    """Returns a network with batch normalization over the global batch."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(momentum=0.8, synchronized=True),
            keras.layers.Activation("tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(_sgd(), loss="mse", metrics=["mae"])
    return model


def subclassed():
    """Returns a subclassed model, which has no variables before its first batch."""
    model = own_parts.Subclassed()
    model.compile(_sgd(), loss="mse", metrics=["mae"])
    return model


def with_own_train_step(model_class: type[keras.Model] = own_parts.HasTrainStep):
    """Returns a model whose train_step is written by hand, without a Keras loss."""
    inputs = keras.Input((6,))
    model = model_class(inputs, _layers()(inputs))
    model.compile(_sgd())
    return model


def with_two_optimizers():
    """Returns a model whose train_step has an optimizer for each of its layers."""
    inputs = keras.Input((6,))
    model = own_parts.HasTwoOptimizers(inputs, _layers()(inputs))
    model.compile(_sgd(), loss="mse")
    model.second_optimizer = keras.optimizers.Adam(0.01)
    return model


def reading_first():
    """Returns a model whose train_step reads weights and losses before they are made."""
    model = own_parts.ReadsFirst()
    # Plain Keras cannot make an optimizer's slots so late; without momentum there are none.
    model.compile(keras.optimizers.SGD(0.1))
    return model


def _sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def _cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _network(
    outputs: Any = 1, input_dtype: Any = None, last_activation: Any = None, **dense_arguments: Any
):
    dtype = dense_arguments.get("dtype")
    return keras.Sequential(
        [
            keras.Input((6,), dtype=input_dtype),
            keras.layers.Dense(8, activation="tanh", **dense_arguments),
            keras.layers.Dense(outputs, activation=last_activation, dtype=dtype),
        ]
    )


def _layers():
    return keras.Sequential(
        [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1, name="head")]
    )


def _two_headed():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    heads = {
        "a": keras.layers.Dense(1, name="a")(hidden),
        "b": keras.layers.Dense(3, name="b")(hidden),
    }
    return keras.Model(inputs, heads)
