"""What the functions of Keras take that are routed, checked before any of them is.

A function that takes something else than it did would be called in the wrong way, or would train
wrong weights in silence. What is new and has a default is left alone: Keras' own callers, which
know it, give it by name, and a function of ours that does not know it raises a TypeError.
"""

import inspect
from collections.abc import Callable, Mapping

from kerasdist.private import names

# The parameters by the names in `keras_routes.ROUTABLE`.
PARAMETERS = {
    "make_train_function": "self force",
    "make_test_function": "self force",
    "compile": "self optimizer loss loss_weights metrics weighted_metrics run_eagerly "
    "steps_per_execution jit_compile auto_scale_loss",
    "fit": "self x y batch_size epochs verbose callbacks validation_split validation_data shuffle "
    "class_weight sample_weight initial_epoch steps_per_epoch validation_steps "
    "validation_batch_size validation_freq",
    "predict": "self x batch_size verbose steps callbacks",
    "train_on_batch": "self x y sample_weight class_weight return_dict",
    "test_on_batch": "self x y sample_weight return_dict",
    "predict_on_batch": "self x",
    "evaluate": "self x y batch_size verbose sample_weight steps callbacks return_dict kwargs",
    "make_predict_function": "self force",
    "save": "self filepath overwrite zipped kwargs",
    "save_weights": "self filepath overwrite max_shard_size",
    "export": "self filepath format verbose input_signature kwargs",
    "save_file": "model filepath weights_format zipped",
    "save_weights_file": "model filepath max_shard_size objects_to_skip",
    "save_h5_file": "model filepath overwrite include_optimizer",
    "symbolic_build": "self iterator data_batch",
    "epoch_logs": "self logs",
    "epoch_iterator": "distribute_strategy args kwargs",
    "callback_list": "args kwargs",
    "apply": "self grads trainable_variables",
    "apply_scaled": "self grads trainable_variables",
    "clip": "self grads",
    "assign_number": "self variable value",
    "average": "self trainable_variables",
    "decay": "self variables",
    "all_reduce": "self grads_and_vars",
    "scale_loss": "self loss",
    "scale_scaled_loss": "self loss",
    "compiled_loss": "self y_true y_pred sample_weight",
    "call_loss": "self y_true y_pred sample_weight",
    "add_loss": "self loss",
    "own_losses": "self",
    "clear_losses": "self",
    "reduce_loss": "values sample_weight mask reduction dtype",
    "scale_for_distribution": "value",
    "unscale_for_distribution": "value",
    "update_mean": "self values sample_weight",
    "update_function": "self y_true y_pred sample_weight",
    "moments": "self inputs mask",
    "global_seed_generator": "",
    "next_seed": "self ordered",
    "assign_add": "self value",
    "gradient": "self target sources output_gradients unconnected_gradients",
    "embed": "self inputs",
}


def check(name: str, place: str, function: Callable) -> None:
    """Checks that a function takes what kerasdist gives it.

    Args:
        name: Its name in `PARAMETERS`.
        place: Where it is found, for the message.
        function: Keras' own, or one that somebody else has put in its place.

    Raises:
        RuntimeError: It takes something else.
    """
    known = PARAMETERS[name].split()
    taken = inspect.signature(function).parameters
    if _takes(taken, known) or ("args" not in known and _hands_on(taken)):
        return
    library = "TensorFlow" if place.startswith("tensorflow.") else "Keras"
    raise RuntimeError(
        f"`{place}({', '.join(taken)})` of {library} {names.version_of(library)} is not the "
        f"function that kerasdist knows, which is ({', '.join(known)}). Nothing was changed. "
        f"{names.remedy_for(library)}"
    )


def _takes(taken: Mapping[str, inspect.Parameter], known: list[str]) -> bool:
    """Whether the known parameters come first, in their order, and what is new has a default."""
    named = [name for name, each in taken.items() if each.kind not in _VARIADIC]
    known_named = [name for name in known if name not in ("args", "kwargs")]
    new = named[len(known_named) :]
    return (
        named[: len(known_named)] == known_named
        and set(known) <= set(taken)
        and all(taken[name].default is not inspect.Parameter.empty for name in new)
    )


def _hands_on(taken: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a function takes whatever there is, as those do that others put before Keras'."""
    return {each.kind for each in taken.values()} >= _VARIADIC


_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
