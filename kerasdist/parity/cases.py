"""The cases of the parity table: each must give the weights of one device on any replicas.

A case is a model, the arguments of `fit`, and, if one device gets its data in another form, the
arguments of the reference. Data and models are small: a case takes seconds, and a wrong weight
shows after a few steps as well as after many.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.parity import models, own_parts
from kerasdist.parity.data import EVEN, ODD, Data
from kerasdist.training.trial.tolerances import TRAINED

CLASS_WEIGHT = {0: 0.2, 1: 3.0, 2: 1.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the parity table.

    Attributes:
        name: The row's title.
        model: Returns a compiled model; called in the scope of the strategy.
        fit: Called with the `Data`; returns the arguments of `fit`. Keras' defaults apply to those
            it leaves out.
        reference: The same for the one device that is the truth; None if it is `fit`.
        tolerance: Largest absolute difference of weights, metrics and history.
        train: Trains a model with the data and those arguments, and returns its history. Defaults
            to `fit`.
        fits_in_scope: Whether `fit` is called in the scope of the strategy.
    """

    name: str
    model: Callable[[], keras.Model]
    fit: Callable[[Data], dict] = Data.arrays
    reference: Callable[[Data], dict] | None = None
    tolerance: float = TRAINED["float32"]
    train: Callable[[keras.Model, Data, dict], dict] | None = None
    fits_in_scope: bool = False


def _in_order(data: Data) -> dict:
    return data.arrays(shuffle=False)


def _train_on_batches(model: keras.Model, data: Data, arguments: dict):
    logs = [model.train_on_batch(x, y, return_dict=True) for x, y in data.ragged_batches()]
    return {name: [log[name] for log in logs] for name in logs[0]}


def _fit_evaluate_predict(model: keras.Model, data: Data, arguments: dict):
    history = model.fit(**arguments).history
    x, y = arguments["x"], arguments["y"]
    metrics = model.evaluate(x, y, batch_size=data.batch_size, return_dict=True)
    outputs = model.predict(x, batch_size=data.batch_size)
    return {**history, **{f"test_{k}": [v] for k, v in metrics.items()}, "outputs": [outputs]}


def _optimizer(name: str, **kwargs: Any):
    return lambda: models.regression(optimizer=getattr(keras.optimizers, name)(**kwargs))


def _sgd(**kwargs: Any):
    return _optimizer("SGD", learning_rate=0.1, momentum=0.9, **kwargs)


def _own_step(model_class: type[keras.Model]):
    return lambda: models.with_own_train_step(model_class)


def _arrays(**kwargs: Any):
    return lambda data: data.arrays(**kwargs)


def _first(num_examples: int, **kwargs: Any):
    return lambda data: data.of(num_examples).arrays(**kwargs)


def _with_weights_and_validation(data: Data):
    weights, validation = data.of(97).weights(), data.of(37).examples()
    return data.of(97).arrays(sample_weight=weights, validation_data=validation)


CASES = (
    Case(name="SGD with momentum", model=_sgd()),
    Case(name="Adam", model=_optimizer("Adam", learning_rate=0.01)),
    Case(name="AdamW", model=_optimizer("AdamW", learning_rate=0.01, weight_decay=0.1)),
    Case(name="RMSprop", model=_optimizer("RMSprop", learning_rate=0.01, momentum=0.5)),
    Case(name="Adagrad", model=_optimizer("Adagrad", learning_rate=0.1)),
    Case(name="Adadelta", model=_optimizer("Adadelta", learning_rate=1.0)),
    Case(name="Ftrl", model=_optimizer("Ftrl", learning_rate=0.1)),
    Case(name="weight decay", model=_sgd(weight_decay=0.05)),
    Case(name="batches in order", model=_sgd(), fit=_in_order),
    Case(name="fit in the scope", model=_sgd(), fits_in_scope=True),
    Case(
        name="fit in the scope, tf.data",
        model=_optimizer("Adam", learning_rate=0.01),
        fit=lambda data: data.dataset(validation_data=data.of(37).batches()),
        fits_in_scope=True,
    ),
    Case(
        name="fit in the scope, own train_step",
        model=models.with_own_train_step,
        fits_in_scope=True,
    ),
    Case(name="L1 and L2 regularizers", model=models.regularized),
    Case(name="activity regularizer", model=models.activity_regularized),
    Case(name="weight constraints", model=models.constrained),
    Case(name="learning-rate schedule", model=models.scheduled),
    Case(
        name="several outputs, loss weights",
        model=models.two_outputs,
        fit=lambda data: data.arrays() | {"y": {"a": data.examples()[1], "b": data.labels()}},
    ),
    Case(name="add_loss", model=models.with_added_loss),
    Case(name="weights in loops", model=models.looping),
    Case(name="clipnorm", model=_sgd(clipnorm=0.05)),
    Case(name="global_clipnorm", model=_sgd(global_clipnorm=0.05)),
    Case(name="clipvalue", model=_sgd(clipvalue=0.02)),
    Case(name="gradient_accumulation_steps=2", model=_sgd(gradient_accumulation_steps=2)),
    Case(name="use_ema", model=_sgd(use_ema=True, ema_momentum=0.9)),
    Case(
        name="use_ema, ema_overwrite_frequency=3",
        model=_sgd(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
    ),
    Case(
        name="sample_weight with zeros",
        model=models.with_weighted_metrics,
        fit=lambda data: data.arrays(sample_weight=data.weights(with_zeros=True)),
    ),
    Case(
        name="class_weight",
        model=models.classification,
        fit=lambda data: data.arrays(y=data.labels(), class_weight=CLASS_WEIGHT),
    ),
    Case(
        name="validation_data",
        model=_sgd(),
        fit=lambda data: data.arrays(
            validation_data=data.of(37).examples(), validation_batch_size=10
        ),
    ),
    Case(name="validation_split", model=_sgd(), fit=_arrays(validation_split=0.5)),
    Case(
        name="evaluate and predict",
        model=_sgd(),
        train=_fit_evaluate_predict,
    ),
    Case(
        name="masks",
        model=models.masked,
        fit=lambda data: data.arrays(x=data.words(), y=np.tile(data.labels()[:, None], 5)),
    ),
    Case(
        name="own metrics: functions",
        model=models.with_metric_functions,
        fit=_with_weights_and_validation,
    ),
    Case(
        name="own metrics: classes",
        model=models.with_metric_classes,
        fit=_with_weights_and_validation,
    ),
    Case(name="loss reduction: sum", model=lambda: models.reduced("sum")),
    Case(
        name="loss reduction: mean_with_sample_weight",
        model=lambda: models.reduced("mean_with_sample_weight"),
        fit=lambda data: data.arrays(sample_weight=data.weights()),
    ),
    Case(
        name="a sum and a mean",
        model=models.sum_and_mean,
        fit=lambda data: data.arrays() | {"y": {"a": data.examples()[1], "b": data.labels()}},
    ),
    Case(
        name="Dice loss",
        model=models.overlapping,
        fit=lambda data: data.arrays(y=(data.labels()[:, None] > 0).astype("float32")),
    ),
    Case(
        name="Circle loss",
        model=models.circled,
        fit=lambda data: data.arrays(y=data.labels(), sample_weight=data.weights()),
    ),
    Case(name="own loss that compares examples", model=models.contrasted),
    Case(name="an odd last batch", model=_sgd(), fit=_first(ODD)),
    Case(name="last batch of 1 example", model=_sgd(), fit=_first(97)),
    Case(name="batches of 33 examples", model=_sgd(), fit=_arrays(batch_size=33)),
    Case(name="batches of 1 example", model=_sgd(), fit=_first(5, batch_size=1)),
    Case(
        name="batches of 1 example, own layer",
        model=models.centered,
        fit=_first(5, batch_size=1),
    ),
    Case(
        name="batches of ragged sizes",
        model=_sgd(),
        fit=lambda data: data.dataset(x=data.ragged_dataset()),
        reference=lambda data: data.dataset(
            x=data.ragged_dataset().apply(tf.data.experimental.assert_cardinality(6))
        ),
    ),
    Case(
        name="tf.data",
        model=_sgd(),
        fit=Data.dataset,
        reference=_in_order,
    ),
    Case(
        name="tf.data, drop_remainder",
        model=_sgd(),
        fit=lambda data: data.dataset(
            x=data.batches().unbatch().batch(data.batch_size, drop_remainder=True)
        ),
        reference=_first(EVEN, shuffle=False),
    ),
    Case(
        name="tf.data of unknown length",
        model=_sgd(),
        fit=lambda data: data.dataset(x=data.batches_of_unknown_number()),
        reference=_in_order,
    ),
    Case(
        name="tf.data without end",
        model=_sgd(),
        fit=lambda data: data.dataset(x=data.batches().repeat(), steps_per_epoch=data.num_batches),
    ),
    Case(
        name="generator",
        model=_sgd(),
        fit=lambda data: data.dataset(x=data.generator(), epochs=1),
        reference=_arrays(shuffle=False, epochs=1),
    ),
    Case(
        name="generator without end",
        model=_sgd(),
        fit=lambda data: data.dataset(x=data.endless_generator(), steps_per_epoch=data.num_batches),
    ),
    Case(
        name="PyDataset",
        model=_sgd(),
        fit=lambda data: data.dataset(x=data.py_dataset()),
    ),
    Case(name="DistributedDataset", model=_sgd(), fit=Data.distributed, reference=_in_order),
    Case(
        name="DistributedDataset, class_weight",
        model=models.classification,
        fit=lambda data: data.distributed(
            tf.data.Dataset.from_tensor_slices((data.examples()[0], data.labels())).batch(
                data.batch_size
            ),
            class_weight=CLASS_WEIGHT,
        ),
        reference=lambda data: _in_order(data) | {"y": data.labels(), "class_weight": CLASS_WEIGHT},
    ),
    Case(
        name="distribute_datasets_from_function",
        model=_sgd(),
        fit=Data.distributed_from_function,
        reference=_first(EVEN, shuffle=False),
    ),
    Case(name="train_on_batch", model=_sgd(), train=_train_on_batches),
    Case(
        name="steps_per_execution=7",
        model=lambda: models.regression(steps_per_execution=7),
    ),
    Case(name="steps_per_execution=10", model=lambda: models.regression(steps_per_execution=10)),
    Case(
        name="steps_per_execution=10, 13 steps",
        model=lambda: models.regression(
            optimizer=keras.optimizers.AdamW(learning_rate=0.01, weight_decay=0.1),
            steps_per_execution=10,
        ),
        fit=_arrays(batch_size=8),
    ),
    Case(
        name="steps_per_execution=3, unknown length",
        model=lambda: models.regression(steps_per_execution=3),
        fit=lambda data: data.dataset(x=data.batches_of_unknown_number()),
        reference=_in_order,
    ),
    Case(name="jit_compile=True", model=lambda: models.regression(jit_compile=True)),
    Case(name="run_eagerly=True", model=lambda: models.regression(run_eagerly=True)),
    Case(
        name="mixed_float16",
        model=lambda: models.mixed("mixed_float16"),
        tolerance=TRAINED["float16"],
    ),
    Case(
        name="mixed_bfloat16",
        model=lambda: models.mixed("mixed_bfloat16"),
        tolerance=TRAINED["bfloat16"],
    ),
    Case(
        name="Embedding (sparse gradients)",
        model=models.embedding,
        fit=lambda data: data.arrays(x=data.words(), y=data.labels()),
    ),
    Case(name="frozen layers", model=models.partly_frozen),
    Case(name="variables without gradient", model=models.with_unused_variable),
    Case(name="BatchNormalization(synchronized=True)", model=models.normalized),
    Case(name="subclassed model", model=models.subclassed),
    Case(name="own train_step", model=models.with_own_train_step),
    Case(name="own train_step, even batches", model=models.with_own_train_step, fit=_first(EVEN)),
    Case(name="own train_step, a tf.function", model=_own_step(own_parts.HasFunctionAsStep)),
    Case(name="own train_step, clips gradients", model=_own_step(own_parts.Clips)),
    Case(name="own train_step, sharpness-aware", model=_own_step(own_parts.ClimbsFirst)),
    Case(name="own train_step, own accumulation", model=_own_step(own_parts.Accumulates)),
    Case(name="own train_step, two optimizers", model=models.with_two_optimizers),
    Case(name="own train_step, reads weights first", model=models.reading_first),
)
