"""What must give the weights of one device on any number of replicas: one case per row.

A case is a model, the arguments of `fit`, and, where one device gets its data in another form, the
arguments of the reference. Data and models are small: a case takes seconds, and a wrong weight
shows after a few steps as well as after many.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from kerasdist.parity import models

# 101 examples in batches of 16: 6 full batches and one of 5, which no number of replicas divides.
NUM_EXAMPLES, BATCH_SIZE = 101, 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the parity table.

    Attributes:
        name: The row's title.
        model: Returns a compiled model; called in the scope of the strategy.
        fit: Called with the strategy (None for one device); returns the arguments of `fit`.
        reference: The same for the one device that is the truth; None if it is `fit`.
        tolerance: Largest absolute difference of weights, metrics and history.
        train: Trains a model with those arguments and returns its history. Defaults to `fit`.
    """

    name: str
    model: Callable[[], keras.Model]
    fit: Callable[..., dict] = lambda strategy: arrays()
    reference: Callable[..., dict] | None = None
    tolerance: float = 1e-5
    train: Callable[[keras.Model, dict], dict] | None = None


def examples(num_examples: int = NUM_EXAMPLES):
    """Returns (x, y): float32 [num_examples, 6] and [num_examples, 1]."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, 6)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(6, 1))).astype("float32")
    return x[:num_examples], y[:num_examples]


def arrays(num_examples: int = NUM_EXAMPLES, **kwargs) -> dict:
    """Returns the arguments of `fit` for numpy arrays, in order."""
    x, y = examples(num_examples)
    return {"x": x, "y": y, "batch_size": BATCH_SIZE, "shuffle": False, "epochs": 2} | kwargs


def _weights(with_zeros=False):
    weights = np.random.default_rng(1).uniform(0.1, 3, NUM_EXAMPLES).astype("float32")
    return np.where(np.arange(NUM_EXAMPLES) % 3 == 0, 0, weights) if with_zeros else weights


def _dataset(num_examples=NUM_EXAMPLES, batch_size=BATCH_SIZE):
    return tf.data.Dataset.from_tensor_slices(examples(num_examples)).batch(batch_size)


def _of_unknown_length(num_examples=NUM_EXAMPLES):
    return _dataset(num_examples).filter(lambda x, y: True)


def _ragged_batches():
    x, y = examples(41)
    start = 0
    for size in (7, 1, 16, 2, 3, 12):
        yield x[start : start + size], y[start : start + size]
        start += size


def _generator():
    x, y = examples()
    for start in range(0, NUM_EXAMPLES, BATCH_SIZE):
        yield x[start : start + BATCH_SIZE], y[start : start + BATCH_SIZE]


def _endless_generator():
    while True:
        yield from _generator()


class _Batches(keras.utils.PyDataset):
    def __len__(self):
        return -(-NUM_EXAMPLES // BATCH_SIZE)

    def __getitem__(self, index):
        x, y = examples()
        rows = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return x[rows], y[rows]


def _ragged_dataset():
    spec = (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None, 1], tf.float32))
    return tf.data.Dataset.from_generator(_ragged_batches, output_signature=spec)


def _distributed_dataset(strategy, **kwargs):
    return {
        "x": strategy.experimental_distribute_dataset(_dataset()),
        "epochs": 2,
        "shuffle": False,
    } | kwargs


def _from_function(strategy):
    """Each replica reads batches of its own: the global batch is one from every replica."""

    def dataset(context):
        per_replica = BATCH_SIZE // context.num_replicas_in_sync
        batches = tf.data.Dataset.from_tensor_slices(examples(96)).batch(per_replica)
        # Keras cannot count such data, and would end with it in the second epoch.
        return batches.shard(context.num_input_pipelines, context.input_pipeline_id).repeat()

    return {
        "x": strategy.distribute_datasets_from_function(dataset),
        "epochs": 2,
        "steps_per_epoch": 6,
        "shuffle": False,
    }


def _labels():
    _, y = examples()
    return np.digitize(y[:, 0], [-0.3, 0.3]).astype("int32")


def _words():
    words = np.random.default_rng(2).integers(1, 20, size=(NUM_EXAMPLES, 5))
    words[np.arange(5) >= np.random.default_rng(3).integers(1, 6, size=(NUM_EXAMPLES, 1))] = 0
    return words


def _train_on_batches(model, arguments):
    logs = [model.train_on_batch(x, y, return_dict=True) for x, y in _ragged_batches()]
    return {name: [log[name] for log in logs] for name in logs[0]}


def _fit_evaluate_predict(model, arguments):
    history = model.fit(**arguments, verbose=0).history
    x, y = arguments["x"], arguments["y"]
    metrics = model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0, return_dict=True)
    outputs = model.predict(x, batch_size=BATCH_SIZE, verbose=0)
    return {**history, **{f"test_{k}": [v] for k, v in metrics.items()}, "outputs": [outputs]}


def _optimizer(name, **kwargs):
    return lambda: models.regression(optimizer=getattr(keras.optimizers, name)(**kwargs))


def _sgd(**kwargs):
    return _optimizer("SGD", learning_rate=0.1, momentum=0.9, **kwargs)


def _of(**kwargs):
    return lambda strategy: arrays(**kwargs)


CASES = (
    Case(name="SGD with momentum", model=_sgd()),
    Case(name="Adam", model=_optimizer("Adam", learning_rate=0.01)),
    Case(name="AdamW", model=_optimizer("AdamW", learning_rate=0.01, weight_decay=0.1)),
    Case(name="RMSprop", model=_optimizer("RMSprop", learning_rate=0.01, momentum=0.5)),
    Case(name="Adagrad", model=_optimizer("Adagrad", learning_rate=0.1)),
    Case(name="Adadelta", model=_optimizer("Adadelta", learning_rate=1.0)),
    Case(name="Ftrl", model=_optimizer("Ftrl", learning_rate=0.1)),
    Case(name="weight decay", model=_sgd(weight_decay=0.05)),
    Case(name="L1 and L2 regularizers", model=models.regularized),
    Case(name="activity regularizer", model=models.activity_regularized),
    Case(name="weight constraints", model=models.constrained),
    Case(name="learning-rate schedule", model=models.scheduled),
    Case(
        name="several outputs, loss weights",
        model=models.two_outputs,
        fit=lambda strategy: arrays() | {"y": {"a": examples()[1], "b": _labels()}},
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
        fit=lambda strategy: arrays(sample_weight=_weights(with_zeros=True)),
    ),
    Case(
        name="class_weight",
        model=models.classification,
        fit=lambda strategy: arrays(y=_labels(), class_weight={0: 0.2, 1: 3.0, 2: 1.0}),
    ),
    Case(
        name="validation_data",
        model=_sgd(),
        fit=lambda strategy: arrays(validation_data=examples(37), validation_batch_size=10),
    ),
    Case(name="validation_split", model=_sgd(), fit=_of(validation_split=0.3)),
    Case(
        name="evaluate and predict",
        model=_sgd(),
        train=_fit_evaluate_predict,
    ),
    Case(
        name="masks",
        model=models.masked,
        fit=lambda strategy: arrays(x=_words(), y=np.tile(_labels()[:, None], 5)),
    ),
    Case(name="loss reduction: sum", model=lambda: models.reduced("sum")),
    Case(
        name="loss reduction: mean_with_sample_weight",
        model=lambda: models.reduced("mean_with_sample_weight"),
        fit=lambda strategy: arrays(sample_weight=_weights()),
    ),
    Case(
        name="a sum and a mean",
        model=models.sum_and_mean,
        fit=lambda strategy: arrays() | {"y": {"a": examples()[1], "b": _labels()}},
    ),
    Case(name="last batch of 1 example", model=_sgd(), fit=_of(num_examples=97)),
    Case(name="batches of 33 examples", model=_sgd(), fit=_of(batch_size=33)),
    Case(name="batches of 1 example", model=_sgd(), fit=_of(num_examples=5, batch_size=1)),
    Case(
        name="batches of 1 example, own layer",
        model=models.centered,
        fit=_of(num_examples=5, batch_size=1),
    ),
    Case(
        name="batches of ragged sizes",
        model=_sgd(),
        fit=lambda strategy: {"x": _ragged_dataset(), "epochs": 2, "shuffle": False},
        reference=lambda strategy: {
            "x": _ragged_dataset().apply(tf.data.experimental.assert_cardinality(6)),
            "epochs": 2,
            "shuffle": False,
        },
    ),
    Case(
        name="tf.data",
        model=_sgd(),
        fit=lambda strategy: {"x": _dataset(), "epochs": 2, "shuffle": False},
    ),
    Case(
        name="tf.data, drop_remainder",
        model=_sgd(),
        fit=lambda strategy: {
            "x": _dataset().unbatch().batch(BATCH_SIZE, drop_remainder=True),
            "epochs": 2,
            "shuffle": False,
        },
        reference=_of(num_examples=96),
    ),
    Case(
        name="tf.data of unknown length",
        model=_sgd(),
        fit=lambda strategy: {"x": _of_unknown_length(), "epochs": 2, "shuffle": False},
        reference=_of(),
    ),
    Case(
        name="tf.data without end",
        model=_sgd(),
        fit=lambda strategy: {
            "x": _dataset().repeat(),
            "epochs": 2,
            "steps_per_epoch": 7,
            "shuffle": False,
        },
        reference=_of(),
    ),
    Case(
        name="generator",
        model=_sgd(),
        fit=lambda strategy: {"x": _generator(), "epochs": 1, "shuffle": False},
        reference=_of(epochs=1),
    ),
    Case(
        name="generator without end",
        model=_sgd(),
        fit=lambda strategy: {
            "x": _endless_generator(),
            "epochs": 2,
            "steps_per_epoch": 7,
            "shuffle": False,
        },
        reference=_of(),
    ),
    Case(
        name="PyDataset",
        model=_sgd(),
        fit=lambda strategy: {"x": _Batches(), "epochs": 2, "shuffle": False},
        reference=_of(),
    ),
    Case(name="DistributedDataset", model=_sgd(), fit=_distributed_dataset, reference=_of()),
    Case(
        name="DistributedDataset, class_weight",
        model=models.classification,
        fit=lambda strategy: {
            "x": strategy.experimental_distribute_dataset(
                tf.data.Dataset.from_tensor_slices((examples()[0], _labels())).batch(BATCH_SIZE)
            ),
            "class_weight": {0: 0.2, 1: 3.0, 2: 1.0},
            "epochs": 2,
            "shuffle": False,
        },
        reference=lambda strategy: arrays(y=_labels(), class_weight={0: 0.2, 1: 3.0, 2: 1.0}),
    ),
    Case(
        name="distribute_datasets_from_function",
        model=_sgd(),
        fit=_from_function,
        reference=_of(num_examples=96),
    ),
    Case(name="train_on_batch", model=_sgd(), train=_train_on_batches),
    Case(
        name="steps_per_execution=7",
        model=lambda: models.regression(steps_per_execution=7),
        reference=_of(),
    ),
    Case(name="steps_per_execution=10", model=lambda: models.regression(steps_per_execution=10)),
    Case(
        name="steps_per_execution=10, 13 steps an epoch, weight decay",
        model=lambda: models.regression(
            optimizer=keras.optimizers.AdamW(learning_rate=0.01, weight_decay=0.1),
            steps_per_execution=10,
        ),
        fit=_of(batch_size=8),
    ),
    Case(
        name="steps_per_execution=3, unknown length",
        model=lambda: models.regression(steps_per_execution=3),
        fit=lambda strategy: {"x": _of_unknown_length(), "epochs": 2, "shuffle": False},
        reference=_of(),
    ),
    Case(name="jit_compile=True", model=lambda: models.regression(jit_compile=True)),
    Case(name="run_eagerly=True", model=lambda: models.regression(run_eagerly=True)),
    Case(name="mixed_float16", model=lambda: models.mixed("mixed_float16"), tolerance=5e-3),
    Case(name="mixed_bfloat16", model=lambda: models.mixed("mixed_bfloat16"), tolerance=2e-2),
    Case(
        name="Embedding (sparse gradients)",
        model=models.embedding,
        fit=lambda strategy: arrays(x=_words(), y=_labels()),
    ),
    Case(name="frozen layers", model=models.partly_frozen),
    Case(name="variables without gradient", model=models.with_unused_variable),
    Case(name="BatchNormalization(synchronized=True)", model=models.normalized),
    Case(name="subclassed model", model=models.subclassed),
    Case(name="own train_step", model=models.with_own_train_step),
    Case(name="own train_step, two optimizers", model=models.with_two_optimizers),
)
