"""Finds what was created outside the strategy's scope, before the first step."""

import tensorflow as tf

from kerasdist.private import keras_adapter, keras_optimizers, tensorflow_adapter
from kerasdist.training import running_call, traits


def check(model) -> None:
    """Checks that all variables of `model` belong to its strategy, and takes its optimizers there.

    Raises:
        RuntimeError: Something was created outside `strategy.scope()` or in another one's; names
        it.
    """
    strategy = model.distribute_strategy
    for optimizer in keras_optimizers.optimizers_of(model):
        owner = keras_adapter.strategy_of(optimizer)
        if owner is strategy:
            continue
        if tensorflow_adapter.is_adapted(owner):
            raise RuntimeError(
                f"Optimizer '{optimizer.name}' of model '{model.name}' was created in the scope of "
                "another strategy. Create it inside the `with strategy.scope():` block of the "
                "model."
            )
        keras_optimizers.adopt(optimizer, strategy)
    check_variables(model)


def check_variables(model) -> None:
    """Checks that all variables of `model` belong to its strategy.

    One device takes in what was made outside of its scope, where nothing can differ.

    Raises:
        RuntimeError: One was created outside `strategy.scope()` or in another one's; names it.
    """
    strategy = model.distribute_strategy
    variables = [*model.variables, *model.metrics_variables]
    owners = [(variable, tensorflow_adapter.owner_of(variable.value)) for variable in variables]
    if strategy.num_replicas_in_sync == 1:
        outside = [variable for variable, owner in owners if owner is None]
        is_remote = traits.has_remote_variables(strategy)
        take_in = keras_adapter.adopt_variables if is_remote else keras_adapter.mark_variables
        take_in(outside, strategy)
        return
    for variable, owner in owners:
        if owner is not strategy:
            where = "in the scope of another strategy" if owner else "outside its strategy's scope"
            raise RuntimeError(
                f"Variable '{variable.path}' of model '{model.name}' was created {where}. Create "
                "layers, metrics and the model inside the same `with strategy.scope():` block, and "
                "call there what makes variables later: `add`, `adapt`, `enable_lora`, `quantize`, "
                "or a `fit` of a library that builds the model before that of Keras."
            )


def adopt_if_inside(model) -> None:
    """Makes a model from outside, as one of a trained model's layers, that of its variables' scope.

    It stays outside where none of its variables was created in a scope of ours.
    """
    owners = [tensorflow_adapter.owner_of(variable.value) for variable in model.variables]
    strategy = next(filter(tensorflow_adapter.is_adapted, filter(None, owners)), None)
    if strategy is not None:
        keras_adapter.adopt_model(model, strategy)


def check_outsider(model) -> None:
    """Checks that a model from outside our scopes is not compiled inside of one.

    Raises:
        RuntimeError: It is.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and tensorflow_adapter.is_adapted(
        keras_adapter.strategy_of(optimizer)
    ):
        raise RuntimeError(
            f"Model '{getattr(model, 'name', model)}' was created outside `strategy.scope()`, and "
            f"its optimizer '{optimizer.name}' inside. Create the model inside the same `with "
            "strategy.scope():` block."
        )


def check_loop_scope(optimizer, variables: list) -> None:
    """Checks that a loop of the user's own does not update outside of the scope of a strategy.

    Args:
        optimizer: The one that is applied.
        variables: What it updates.

    Raises:
        RuntimeError: It does, with an optimizer of ours or, on several replicas, weights of ours.
    """
    strategy = keras_adapter.strategy_of(optimizer)
    owners = [tensorflow_adapter.owner_of(keras_adapter.value_of(each)) for each in variables]
    if _is_left(strategy):
        raise RuntimeError(
            f"Optimizer '{optimizer.name}' was created inside `strategy.scope()`, and is applied "
            f"outside of it. {_way_into(strategy, owners)}"
        )
    for variable, owner in zip(variables, owners, strict=True):
        if _is_left(owner) and owner.num_replicas_in_sync > 1:
            raise RuntimeError(
                f"Weight '{getattr(variable, 'path', variable.name)}' was created inside "
                f"`strategy.scope()`, and is updated outside of it. {_way_into(owner, owners)}"
            )


def _is_left(strategy) -> bool:
    return tensorflow_adapter.is_adapted(strategy) and tf.distribute.get_strategy() is not strategy


def _way_into(strategy, owners: list) -> str:
    """Returns what to do where an update is outside of `strategy`, with what owns the weights."""
    sentences = [
        "Make the step a `train_step` of the model, which `fit` runs "
        '(docs/training.md, "A loop of your own").'
    ]
    if owners and strategy not in owners:
        sentences.insert(0, "Create the model inside the same `with strategy.scope():` block.")
    elif strategy.num_replicas_in_sync == 1 and not traits.has_remote_variables(strategy):
        sentences.append("Or put the loop inside `with strategy.scope():`.")
    if running_call.is_fit():
        # It is left for them: what they make belongs to no step.
        sentences.insert(0, "Callbacks run outside of the scope that `fit` is in.")
    return " ".join(sentences)


def check_on_replica(what: str) -> None:
    """Checks that a loop of the user's own does not compute gradients outside of the replicas.

    Args:
        what: What it calls, for the message.

    Raises:
        RuntimeError: It does, in the scope of several replicas.
    """
    strategy = tf.distribute.get_strategy()
    number = strategy.num_replicas_in_sync
    is_ours = number > 1 and tensorflow_adapter.is_adapted(strategy)
    if is_ours and tf.distribute.in_cross_replica_context():
        raise RuntimeError(
            f"{what} is called in the scope of {number} replicas and on none of them. Make the "
            'step a `train_step` of the model, and `fit` runs it on each (docs/training.md, "A '
            'loop of your own"), or call it with `strategy.run(step, args=(batch,))`.'
        )


def check_has_strategy(model, what: str) -> None:
    """Checks that `model` belongs to one of our strategies.

    Args:
        model: A Keras model.
        what: What needs it, for the message.

    Raises:
        RuntimeError: It was created outside their scopes.
    """
    if not tensorflow_adapter.is_adapted(keras_adapter.strategy_of(model)):
        raise RuntimeError(
            f"{what} cannot act on model '{model.name}', which was created outside the scope of a "
            "kerasdist strategy. Create and compile it inside `with "
            "kerasdist.make_strategy().scope():`."
        )
