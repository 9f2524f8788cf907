"""Takes in, or names, what was created outside of the strategy's scope, before the first step."""

from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_layers, keras_optimizers, scopes, strategy_adapter
from kerasdist.support.unique import unique
from kerasdist.support.users_line import warn
from kerasdist.training.context import deployment, running_call, traits
from kerasdist.training.hooks.divided_values import parts_of


def check(model: keras.Model) -> None:
    """Takes what `model` is trained or evaluated with into the scope of its strategy.

    All workers call this.

    Raises:
        RuntimeError: Something was created in the scope of another strategy; names it.
    """
    strategy = model.distribute_strategy
    for optimizer in keras_optimizers.optimizers_of(model):
        owner = scopes.strategy_of(optimizer)
        if owner is strategy:
            continue
        if strategy_adapter.is_adapted(owner):
            raise RuntimeError(
                f"Optimizer '{optimizer.name}' of model '{model.name}' was created in the scope of "
                "another strategy. Create it inside the `with strategy.scope():` block of the "
                "model."
            )
        keras_optimizers.adopt(optimizer, strategy)
    check_variables(model)
    scopes.adopt_variables(_outside(model), strategy, keras_layers.layers_of(model))


def check_variables(model: keras.Model) -> None:
    """Checks that no variable of `model` belongs to another strategy.

    Those from outside may be read by all replicas of this worker; one device and parameter servers
    take them in.

    Raises:
        RuntimeError: One was created in another strategy's scope; names it.
    """
    strategy = model.distribute_strategy
    if traits.has_remote_variables(strategy):
        scopes.adopt_variables(_outside(model), strategy, keras_layers.layers_of(model))
    elif strategy.num_replicas_in_sync == 1:
        scopes.mark_variables(_outside(model), strategy)
        return
    for variable in _variables_of(model):
        if scopes.owner_of(variable) not in (None, strategy):
            raise RuntimeError(
                f"Variable '{variable.path}' of model '{model.name}' was created in the scope of "
                "another strategy. Create layers, metrics and the model inside the same `with "
                "strategy.scope():` block."
            )


def _outside(model: keras.Model) -> list:
    return [variable for variable in _variables_of(model) if scopes.owner_of(variable) is None]


def _variables_of(model: keras.Model) -> list:
    return unique([*model.variables, *model.metrics_variables])


def adopt_if_inside(model: keras.Model) -> None:
    """Makes a model from outside, as one of a trained model's layers, that of its variables' scope.

    It stays outside where none of its variables was created in a scope of ours.
    """
    owners = map(scopes.owner_of, model.variables)
    strategy = next(filter(strategy_adapter.is_adapted, filter(None, owners)), None)
    if strategy is not None:
        scopes.adopt_model(model, strategy)


def check_outsider(model: keras.Model, what: str) -> None:
    """Checks that a model from outside our scopes is not compiled or trained inside of one.

    Args:
        model: Such a model.
        what: What is about to be done with it: "compiled", for the message.

    Raises:
        RuntimeError: It is, or with an optimizer or weights from inside.
    """
    reason = _inside_of(model, what)
    if reason:
        raise RuntimeError(
            f"Model '{getattr(model, 'name', model)}' was created outside `strategy.scope()`, and "
            f"{reason}. Create the model inside the same `with strategy.scope():` block."
        )


def _inside_of(model: keras.Model, what: str) -> str:
    if strategy_adapter.is_adapted(tf.distribute.get_strategy()):
        return f"is {what} inside"
    optimizer = getattr(model, "optimizer", None)
    if optimizer and strategy_adapter.is_adapted(scopes.strategy_of(optimizer)):
        return f"its optimizer '{optimizer.name}' inside"
    if what == "compiled":
        return ""
    for variable in model.trainable_variables:
        # What it was compiled for would change it on one of the replicas alone.
        if strategy_adapter.is_adapted(
            owner := scopes.owner_of(variable)
        ) and not traits.is_one_device(owner):
            return f"another one, created inside, trains its weight '{variable.path}'"
    return ""


def check_placement(model: keras.Model) -> None:
    """Checks that the variables of `model` live on parameter servers.

    Raises:
        RuntimeError: One was created outside the scope of its strategy; names it.
    """
    for variable in [*model.variables, *model.metrics_variables]:
        if not all("/job:ps/" in part.device for part in parts_of(variable.value)):
            raise RuntimeError(
                f"Variable '{variable.path}' of model '{model.name}' was created outside its "
                "strategy's scope, so it is on no parameter server. Create layers, metrics and the "
                "model inside the same `with strategy.scope():` block."
            )


def check_loop_scope(optimizer: Any, variables: list) -> None:
    """Checks that a loop of the user's own does not update outside of the scope of a strategy.

    Warns that such a loop is not synchronous over parameter servers: `sync_replicas` is for `fit`.

    Args:
        optimizer: The one that is applied.
        variables: What it updates.

    Raises:
        RuntimeError: It does, with an optimizer of ours or, on several replicas, weights of ours.
    """
    strategy = scopes.strategy_of(optimizer)
    owners = list(map(scopes.owner_of, variables))
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
    remote = deployment.of(strategy).remote
    if remote and remote.num_to_aggregate:
        warn(
            "A training loop of your own is asynchronous: each worker applies its own gradients. "
            "`sync_replicas` is for `fit`: make the step a `train_step` of the model "
            '(docs/training.md, "A loop of your own"), or leave `sync_replicas` out.'
        )


def _is_left(strategy: tf.distribute.Strategy) -> bool:
    return strategy_adapter.is_adapted(strategy) and tf.distribute.get_strategy() is not strategy


def _way_into(strategy: tf.distribute.Strategy, owners: list) -> str:
    """Returns what to do where an update is outside of `strategy`, with what owns the weights."""
    sentences = [
        "Make the step a `train_step` of the model, which `fit` runs "
        '(docs/training.md, "A loop of your own").'
    ]
    if owners and strategy not in owners:
        sentences.insert(0, "Create the model inside the same `with strategy.scope():` block.")
    elif traits.is_one_device(strategy):
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
    is_ours = number > 1 and strategy_adapter.is_adapted(strategy)
    if is_ours and tf.distribute.in_cross_replica_context():
        raise RuntimeError(
            f"{what} is called in the scope of {number} replicas and on none of them. Make the "
            'step a `train_step` of the model, and `fit` runs it on each (docs/training.md, "A '
            'loop of your own"), or call it with `strategy.run(step, args=(batch,))`.'
        )


def check_has_strategy(model: keras.Model, what: str) -> None:
    """Checks that `model` belongs to one of our strategies.

    Args:
        model: A Keras model.
        what: What needs it, for the message.

    Raises:
        RuntimeError: It was created outside their scopes.
    """
    if not strategy_adapter.is_adapted(scopes.strategy_of(model)):
        raise RuntimeError(
            f"{what} cannot act on model '{model.name}', which was created outside the scope of a "
            "kerasdist strategy. Create and compile it inside `with "
            "kerasdist.make_strategy().scope():`."
        )
