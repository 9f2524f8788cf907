"""Between the note of an update on a parameter server and the update itself nothing is sent.

A worker that is lost takes with it what it has not sent yet, and what others have not sent for it.
An update that waits for such a message would be missing where the note says that it is made.
"""

import functools
import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import coordinator_adapter, names
from kerasdist.strategies.make_strategy import make_strategy
from kerasdist.training.hooks import divided_values
from tests import fork_server
from tests.cases import exhaustive

pytestmark = pytest.mark.processes

# That are around others.
EXCEPTIONS = {"LossScaleOptimizer", "MultiOptimizer", "Optimizer"}
OPTIMIZERS = {
    **{
        name: each
        for name, each in vars(keras.optimizers).items()
        if isinstance(each, type)
        and issubclass(each, keras.optimizers.Optimizer)
        and name not in EXCEPTIONS
    },
    "SGD, momentum, clipnorm": lambda: keras.optimizers.SGD(momentum=0.9, clipnorm=1.0),
    "Adam, use_ema": lambda: keras.optimizers.Adam(use_ema=True, ema_momentum=0.5),
    "ema_overwrite_frequency": lambda: keras.optimizers.SGD(
        use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "RMSprop, weight_decay": lambda: keras.optimizers.RMSprop(weight_decay=0.1),
    "Nadam, weight_decay": lambda: keras.optimizers.Nadam(weight_decay=0.1),
    "Lion, global_clipnorm": lambda: keras.optimizers.Lion(global_clipnorm=1.0),
    "a schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)),
}
OF_WHOLE_WEIGHTS = ("Adafactor", "Lamb", "Muon")
# Each updates in another way: with numbers of its own, decay, averages, or limits.
OF_EACH_KIND = {
    "Adam",
    "Adam, use_ema",
    "Ftrl",
    "Muon",
    "RMSprop, weight_decay",
    "SGD, momentum, clipnorm",
    "ScheduleFreeAdamW",
    "a schedule",
    "ema_overwrite_frequency",
}
CHANGE = re.compile("Assign|Resource(?!Gather)")
SHARDS = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)


def in_one_piece(names):
    """Returns by optimizer how many weights are not noted, what else updates wait for; weights."""
    return found_over(make_strategy(steps_per_call=1), names)


def in_two_pieces(names):
    """Returns the same where the rows of every weight are divided."""
    return found_over(make_strategy(steps_per_call=1, variable_partitioner=_shards), names)


def _shards(shape, dtype):
    return SHARDS(shape, dtype) if shape[0] > 1 else [1] * len(shape)


def found_over(strategy, names):
    return {name: told(strategy, OPTIMIZERS[name]) for name in sorted(names)}


def told(strategy, make_optimizer):
    try:
        return traced(strategy, make_optimizer)
    except ValueError as error:
        return str(error)


class Half(keras.constraints.Constraint):
    """Changes a weight in every step."""

    def __call__(self, w):
        return 0.5 * w


def make_model(make_optimizer):
    keras.utils.set_random_seed(5)
    large = keras.layers.Dense(400)  # Too large for the message that small weights share.
    last = keras.layers.Dense(1, bias_constraint=Half())  # A bias is never divided.
    layers = [keras.layers.Embedding(50, 100), keras.layers.Flatten(), large, last]
    model = keras.Sequential([keras.Input((3,), dtype="int64"), *layers])
    model.compile(make_optimizer(), "mse")
    return model


def data():
    rows = tf.reshape(tf.range(12, dtype=tf.int64), [4, 3])
    return tf.data.Dataset.from_tensors((rows, tf.ones([4, 1]))).repeat(3)


def traced(strategy, make_optimizer):
    with strategy.scope():
        model = make_model(make_optimizer)
    graphs = []

    def kept(stock, *args):
        function = stock(*args)
        graphs.append(function.graph)
        return function

    with names.replaced({(coordinator_adapter, "concrete_function"): kept}):
        model.fit(data(), verbose=0)
    (graph,) = graphs
    parts: list[Any] = []
    for weight in model.trainable_variables:
        parts.extend(divided_values.parts_of(weight.value))
    return *messages(graph, [part.handle for part in parts]), model.get_weights()


def messages(graph, handles) -> tuple[int, list[str]]:
    outside = {inside.op: external for external, inside in graph.captures}
    weights = {op for op, external in outside.items() if any(external is each for each in handles)}
    notes = [op for op in graph.get_operations() if op.type == "ResourceScatterMax"]
    updated, late = set(), []
    for op in graph.get_operations():
        before = ancestors(op)
        noted = [note for note in notes if note in before]
        changes = op not in notes and CHANGE.match(op.type)
        if not (changes and "/job:ps" in device_of(op, outside)):
            continue
        if not noted:
            late.append(f"{op.type} {op.name} is not noted")
            continue
        updated |= weights & {tensor.op for tensor in op.inputs}
        behind = before - set().union(*(ancestors(note) | {note} for note in noted))
        for each in behind - set(outside):
            if device_of(each, outside) != device_of(op, outside):
                late.append(f"{op.type} waits for {each.type} {each.name}")
    return len(handles) - len(updated), late


def ancestors(op) -> set:
    found, left = set(), [op]
    while left:
        op = left.pop()
        for each in [*(tensor.op for tensor in op.inputs), *op.control_inputs]:
            if each not in found:
                found.add(each)
                left.append(each)
    return found


def device_of(op, outside):
    """Returns where an operation runs: with its variable, whatever is said."""
    variables = [outside[each.op].device for each in op.inputs if each.op in outside]
    return variables[0] if variables else op.device


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("run", "names"),
    [
        (in_one_piece, OF_EACH_KIND),
        *exhaustive(
            (in_one_piece, OPTIMIZERS.keys() - OF_EACH_KIND), (in_two_pieces, set(OPTIMIZERS))
        ),
    ],
    ids=["in one piece", "others in one piece", "in two pieces"],
)
def test_an_update_that_is_noted_waits_for_no_message(run, names):
    chief, *_ = fork_server.run_cluster(
        functools.partial(run, names), num_workers=1, num_ps=2, timeout_secs=280
    )

    assert chief.exit_code == 0, chief.output[-4000:]
    found = chief.value
    if run is in_two_pieces:
        for name in OF_WHOLE_WEIGHTS:
            assert re.search(
                f"{name} updates a weight as a whole, and `variable_partitioner` divides "
                r".*embedding\w*/embeddings, .*/kernel, ",
                found.pop(name),
            )
    assert {name: each[:2] for name, each in found.items()} == dict.fromkeys(found, (0, []))
    assert found.keys() >= names - set(OF_WHOLE_WEIGHTS)
    if run is in_one_piece:
        for name, (*_, weights) in found.items():
            plain = make_model(OPTIMIZERS[name])
            # In a traced step Keras loses what ScheduleFreeAdamW begins with.
            plain.optimizer.build(plain.trainable_variables)
            plain.fit(data(), shuffle=False, verbose=0)
            for weight, truth in zip(weights, plain.get_weights(), strict=True):
                np.testing.assert_allclose(weight, truth, atol=1e-5, err_msg=name)
