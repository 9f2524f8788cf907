"""Tells the custom parts of a model, which are the user's, from the original ones of Keras.

The private names that it takes to tell, each with its reason.

tests/private/test_custom_parts.py fails when one of these names moves. Written against Keras 3.12
to 3.15.
"""

import inspect
from typing import Any

import keras
from keras.src.losses import losses as losses_module
from keras.src.metrics import regression_metrics

from kerasdist.private import keras_layers, keras_operations, keras_optimizers, keras_routes
from kerasdist.support.unique import unique

_CORRELATIONS = (keras.metrics.PearsonCorrelation, keras.metrics.ConcordanceCorrelation)
# Functions that compare examples, or divide sums over them, where their axes, by default these, are
# all (None) or have the first among them.
_OF_SEVERAL_EXAMPLES = (
    (keras.losses.circle, None),
    (keras.losses.dice, None),
    (keras.losses.tversky, None),
    (keras.losses.cosine_similarity, -1),
    (regression_metrics.cosine_similarity, -1),
    (keras.losses.categorical_crossentropy, -1),
    (keras.losses.categorical_focal_crossentropy, -1),
    (keras.losses.sparse_categorical_crossentropy, -1),
)
# Keras makes one of a function that is given to `compile`.
_LossFunctionWrapper = losses_module.LossFunctionWrapper
# `fit` calls these of a callback around each batch; by default the first two call the others.
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
# Attributes of layers that may hold a function of the user's, of all examples.
_FUNCTIONS = ("function", "activation", "recurrent_activation", "activity_regularizer")


def is_original_step(step: Any) -> bool:
    """Whether a `train_step`, `test_step` or `predict_step` of a model is Keras' own.

    That train_step calls `scale_loss` between the loss and the backward pass, exactly once.
    """
    trainer = keras_routes.TensorFlowTrainer
    original_steps = (trainer.train_step, trainer.test_step, trainer.predict_step)
    return getattr(step, "__func__", None) in original_steps


def has_original_steps(model: keras.Model) -> bool:
    """Whether `model` trains and evaluates by calling itself, as Keras' own steps do."""
    return is_original_step(model.train_step) and is_original_step(model.test_step)


def has_original_total_loss(model: keras.Model) -> bool:
    """Whether `model` trains with the sum of its losses, as Keras' own train_step makes it."""
    return (
        is_original_step(model.train_step)
        and type(model).compute_loss is keras_routes.BaseTrainer.compute_loss
    )


def returns_original_metrics(model: keras.Model, step_name: str) -> bool:
    """Whether Keras' own `step_name` returns the metrics of `model` and nothing of the user's."""
    return (
        is_original_step(getattr(model, step_name))
        and type(model).compute_metrics is keras_routes.BaseTrainer.compute_metrics
    )


def has_original_losses(model: keras.Model) -> bool:
    """Whether every loss that `model` is compiled with is one of Keras'."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    return not any(loss is None or is_custom_loss(loss) for loss in losses)


def has_unreduced_losses(model: keras.Model) -> bool:
    """Whether a loss that `model` is compiled with gives a number for each example."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    return any(getattr(loss, "reduction", "sum") in (None, "none") for loss in losses)


def is_custom_loss(loss: Any) -> bool:
    """Whether a loss is the user's: a class, or a function, also as Keras wraps it."""
    if loss is None or isinstance(loss, str):
        return False
    if isinstance(loss, _LossFunctionWrapper):
        return not (_is_original(loss) and _is_original(loss.fn))
    return not _is_original(loss)


def custom_loss_names(model: keras.Model) -> list[str]:
    """Returns the names of those losses that `model` is compiled with that are the user's."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    custom = [loss for loss in losses if is_custom_loss(loss)]
    names = [
        getattr(each, "name", getattr(each, "__name__", type(each).__name__)) for each in custom
    ]
    return list(dict.fromkeys(names))


def compiled_losses_of(model: keras.Model) -> Any:
    """Returns Keras' object for the losses that `model` is compiled with; None for none."""
    return getattr(model, "_compile_loss", None)


def mixes_examples(loss_or_metric: keras.Loss | keras.Metric, *, rank: int | None = None) -> bool:
    """Whether what a function of Keras' gives as a loss or a metric is no mean over the examples.

    Args:
        loss_or_metric: A `keras.Loss` or a `keras.metrics.Metric`.
        rank: Of the predictions, where it is known.
    """
    wrapped = loss_or_metric
    if isinstance(wrapped, _LossFunctionWrapper):
        function = wrapped.fn
    elif isinstance(wrapped, keras.metrics.MeanMetricWrapper):
        function = wrapped._fn
    else:
        return False
    default = [axes for each, axes in _OF_SEVERAL_EXAMPLES if each is function]
    if not default:
        return False
    axes = wrapped._fn_kwargs.get("axis", default[0])
    if axes is None:
        return True
    axes = axes if isinstance(axes, tuple | list) else [axes]
    return any(axis == 0 or (rank is not None and axis == -rank) for axis in axes)


def compares_examples(loss: Any) -> bool:
    """Whether a loss is given to `compile`, by its name too, that is one of Keras' of several."""
    loss = keras.losses.get(loss)
    given = [axes for each, axes in _OF_SEVERAL_EXAMPLES if each is loss]
    return None in given or mixes_examples(loss)


def original_metric_names(model: keras.Model) -> set[str]:
    """Returns the names of those metrics of `model` that are Keras' own."""
    metrics = [each for metric in model.metrics for each in getattr(metric, "metrics", [metric])]
    return {metric.name for metric in metrics if _is_original(metric)}


def has_custom_parts(model: keras.Model) -> bool:
    """Whether `model` is or has something that may look at several examples.

    A layer, a function in one or an optimizer of the user's; a layer of Keras' that is told to, or
    operations between layers.
    """
    return not all(
        _is_original(each) and not _custom_applies(each)
        for each in keras_optimizers.nested_of(model)
    ) or any(
        not _is_original(layer) or _may_mix_examples(layer) for layer in model._flatten_layers()
    )


def _may_mix_examples(layer: keras.Layer) -> bool:
    functions = (getattr(layer, name, None) for name in _FUNCTIONS)
    has_custom = any(function is not None and not _is_original(function) for function in functions)
    return has_custom or keras_operations.may_mix_examples(layer)


def is_loss_all_custom(model: keras.Model) -> bool:
    """Whether nothing of `model` can be the user's own but how its loss is computed."""
    return (
        is_original_step(model.train_step)
        and _calls_each_example_alone(model)
        and all(_is_original(optimizer) for optimizer in keras_optimizers.nested_of(model))
    )


def predicts_each_example_alone(model: keras.Model) -> bool:
    """Whether `model` predicts, with Keras' own parts, a row for each example from it alone."""
    return is_original_step(model.predict_step) and _calls_each_example_alone(model)


def evaluates_each_example_alone(model: keras.Model) -> bool:
    """Whether all that `model` gives when it evaluates are means and metrics of Keras' own."""
    return (
        returns_original_metrics(model, "test_step")
        and type(model).compute_loss is keras_routes.BaseTrainer.compute_loss
        and has_original_losses(model)
        and not has_unreduced_losses(model)
        and _calls_each_example_alone(model)
    )


def _calls_each_example_alone(model: keras.Model) -> bool:
    methods = (type(model).call, type(model).__call__)
    return (
        all(_is_original(method) for method in methods)
        and all(
            _is_original(layer) for layer in keras_layers.layers_of(model) if layer is not model
        )
        and not any(_may_mix_examples(layer) for layer in model._flatten_layers())
    )


def custom_applies_of(model: keras.Model) -> list[tuple[Any, str]]:
    """Returns the methods by which optimizers of `model` apply gradients in a way of their own.

    Of the user's: also those of optimizers that layers hold; of a class, or assigned to an
    optimizer. Of Keras': where an optimizer divides the gradients among others.

    Returns:
        Pairs of an optimizer and the name of its method.
    """
    outer = [*keras_optimizers.optimizers_of(model), *keras_optimizers.optimizers_inside(model)]
    every = unique(each for optimizer in outer for each in keras_optimizers.nested(optimizer))
    dividing = [(each, "apply") for each in every if keras_optimizers.divides(each)]
    custom = [(each, name) for each in every for name in _custom_applies(each)]
    return [*custom, *(pair for pair in dividing if pair not in custom)]


def _custom_applies(optimizer: keras.optimizers.Optimizer) -> list[str]:
    names = ("apply", "apply_gradients")
    return [name for name in names if not _is_original(getattr(optimizer, name))]


def has_custom_batch_hook(callback: keras.callbacks.Callback) -> bool:
    """Whether `fit` calls a function of the user's around each batch, as a hook of `callback`.

    Not where a subclass of one of Keras' callbacks, or of ours, overrides other hooks alone.
    """
    hooks = (getattr(callback, name, None) for name in _BATCH_HOOKS)
    return not all(hook is None or _is_original(hook) or _is_ours(hook) for hook in hooks)


def _is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("kerasdist.")


def _is_original(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("keras.src.")


def metrics_of(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns the metrics of `model`, also what its own `metrics` property leaves out."""
    metrics = [*model.metrics, *keras_routes.BaseTrainer.metrics.fget(model)]
    inner = [each for metric in metrics for each in getattr(metric, "metrics", ())]
    return unique([*metrics, *inner])


def custom_metrics_of(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns the metrics of `model` that may not add up; those given to `compile`, too."""
    return [each for each in all_metrics_of(model) if not adds_up(each)]


def all_metrics_of(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns the metrics of `model`; those given to `compile`, too."""
    compiled, given = model._compile_metrics, []
    if compiled is not None:
        given = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    metrics = [each for each in given if isinstance(each, keras.metrics.Metric)]
    return unique([*metrics_of(model), *metrics])


def adds_up(metric: keras.Metric) -> bool:
    """Whether the variables of a metric are sums over the examples, as those of Keras' own are.

    Not where a class or a function is the user's. Keras' losses give one number for a batch, and
    its correlations may be over the examples.
    """
    if not _is_original(metric) or isinstance(metric, _CORRELATIONS) or mixes_examples(metric):
        return False
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        return inspect.isfunction(metric._fn) and _is_original(metric._fn)
    return True
