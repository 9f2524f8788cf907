"""Steps that are not finite: they do no harm, and their cause is named."""

import contextlib
import io
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.callbacks.evidence import Evidence
from kerasdist.private import scopes
from kerasdist.support.checks import check_choice, check_int, checked_folder
from kerasdist.support.remote_path import absolute
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, traits
from kerasdist.training.hooks import layer_outputs, step_variables
from kerasdist.training.hooks.gradient_values import map_values, values_of
from kerasdist.training.hooks.graph_function import rare_cond
from kerasdist.training.hooks.update_callback import StepCallback
from kerasdist.training.replica import replicas
from kerasdist.training.report import report_file
from kerasdist.training.trial import undo

# The message names so many of the largest earlier gradients.
_NUM_LARGEST = 3


class StopOnNonFinite(StepCallback):
    """Leaves out the update of a step whose loss or gradient is infinite or NaN, and says why.

    A gradient is finite if its L2 norm is, in float32.

    Weights, optimizer, moving statistics and metrics stay as the step before has left them; if a
    `train_step` makes several updates, those that came before the one that is not finite stay. The
    message names the step, the worker and replica, what went wrong first (an input, a layer, a loss
    or the gradient of a variable), and the largest gradients before it, as a replica has them for
    its part of the batch. The batch that caused it is kept.

    With a `LossScaleOptimizer`, as with `mixed_float16`, only the losses that Keras computes are
    looked at. An infinite gradient is an overflow there, and that optimizer's business: it leaves
    out the update and halves its scale. It does the same where the loss is not finite.

    It acts before all other callbacks, wherever it is in the list. It costs one sum over the
    gradients in each step and, on accelerators, a wait for its result.

    Args:
        action: "raise" raises the error; "stop" ends `fit` as `model.stop_training` does; "restore"
            warns and goes on with the next batch, from the weights of the step before.
        max_restores: After how many such steps "restore" raises as well.
        directory: Where to write the batch as `non-finite-step-<n>.npz`, or None.

    Attributes:
        batch: The batch of the replica that was not finite, as arrays in the structure of the data;
            None before that, on workers whose replicas were finite, with `jit_compile=True` on one
            device, and with synchronous workers over parameter servers, who keep it to themselves.
        step: Which update of the optimizer it would have been, from 1; None before that.

    Raises:
        TypeError, ValueError: `action` is none of these, `max_restores` is not an int of at least
            1, or `directory` is not the path of a folder.
        FloatingPointError: In `fit`, after such a step.

    Example:
        ```python
        model.fit(dataset, callbacks=[StopOnNonFinite(action="raise")])
        ```
    """

    guards_update = True

    def __init__(
        self,
        action: str = "raise",
        *,
        max_restores: int = 3,
        directory: str | os.PathLike | None = None,
    ):
        super().__init__()
        check_choice("action", action, ("raise", "stop", "restore"))
        check_int("max_restores", max_restores, at_least=1)
        self.action, self.max_restores = action, max_restores
        self.directory = None
        if directory is not None:
            self.directory = absolute(checked_folder("directory", directory))
        self.batch: Any = None
        self.step: int | None = None

    def prepare(self, model: keras.Model):
        strategy = model.distribute_strategy
        self._index = {id(each): index for index, each in enumerate(model.trainable_variables)}
        # A callback may freeze some of them later.
        self._paths = [each.path for each in model.trainable_variables]
        self._found_by: dict = {}
        with step_variables.being_made(strategy):
            self._sizes_before: Any = tf.Variable(tf.zeros([len(self._index)]), trainable=False)
        self._evidence = [
            Evidence(strategy, len(self._index)) for _ in peers.local_replicas(strategy)
        ]
        self._num_restores = 0
        # XLA cannot keep what may have a different size in each call.
        self._keeps_batch = not traits.is_compiled_by_xla(model)

    def extra_sums(self, gradients: list):
        step: Any = replicas.current()
        sizes = _sizes_of(gradients)
        losses = [tf.cast(each, tf.float32) for each in replicas.losses().values()]
        losses = tf.stack(losses or [0.0])
        is_bad = ~tf.reduce_all(tf.math.is_finite(tf.concat([sizes, losses], axis=0)))
        if step.may_be_empty:
            is_bad &= step.num_examples > 0
        if not step.delivery.is_apart:
            # Every replica is traced in a thread of its own.
            self._found_by[threading.get_ident()] = sizes, losses
        num_replicas = peers.num_replicas(self.model.distribute_strategy)
        flag = tf.one_hot(peers.replica_id(), num_replicas) * tf.cast(is_bad, tf.float32)
        name = _extra_sum(step.updates.optimizers)
        return {name: flag, _losses_in(name): losses} if step.delivery.is_apart else {name: flag}

    def guard_scaled(self, gradients: list, optimizer: keras.optimizers.Optimizer):
        step: Any = replicas.current()
        is_bad, leave_out, _ = self._judgment(
            step.updates.optimizers, optimizer.inner_optimizer, []
        )
        rare_cond(is_bad, leave_out)
        first = next((gradient for gradient in gradients if gradient is not None), None)
        if first is None:
            return gradients
        # One that is NaN is enough: the optimizer then makes no update.
        spoilt = map_values(first, lambda values: tf.where(is_bad, np.nan, values))
        return [spoilt if gradient is first else gradient for gradient in gradients]

    def update(self, gradients_and_variables: list, apply: Callable):
        step: Any = replicas.current()
        is_judged = threading.get_ident() not in self._found_by
        if step.delivery.is_apart:
            is_judged = bool(step.states.discards)
        if is_judged:  # A LossScaleOptimizer has been asked.
            apply(gradients_and_variables)
            return
        *before, optimizer = step.updates.optimizers
        indices = [self._index[id(variable)] for _, variable in gradients_and_variables]
        gradients = [gradient for gradient, _ in gradients_and_variables]
        is_bad, leave_out, sizes = self._judgment(before, optimizer, indices, gradients)
        if peers.replica_id() == peers.local_replicas(self.model.distribute_strategy)[0]:
            seen = self._sizes_before.read_value()
            self._sizes_before.assign(tf.where(is_bad, seen, self._of_all(indices, sizes, seen)))
        rare_cond(is_bad, leave_out, lambda: apply(gradients_and_variables))

    def _judgment(
        self,
        before: list,
        optimizer: keras.optimizers.Optimizer,
        variables: list[int],
        gradients: Sequence = (),
    ) -> tuple:
        """Returns whether the update is left out, what is then done, and the sizes of gradients.

        Args:
            before: The optimizers that have updated in this step.
            optimizer: The one that counts this update.
            variables: The positions of those whose gradients `extra_sums` has seen.
            gradients: Of the global batch, of these variables.
        """
        step: Any = replicas.current()
        flags = step.sums[_extra_sum(before)]
        local = peers.replica_id() - peers.local_replicas(self.model.distribute_strategy)[0]
        evidence = self._evidence[local]
        if step.delivery.is_apart:
            sizes, losses = _sizes_of(gradients), step.sums[_losses_in(_extra_sum(before))]
        else:
            sizes, losses = self._found_by.pop(threading.get_ident())
        is_bad = tf.reduce_any(flags > 0)
        # What comes after the step, in the same call, waits for what is to be done.
        is_left_out = is_bad if self.action == "restore" else is_bad | evidence.is_there()
        data = () if step.data is None or not self._keeps_batch else step.data

        nothing = tf.zeros([len(self._index)])
        found = tf.concat([flags, self._of_all(variables, sizes, nothing), losses], axis=0)

        def leave_out():
            count = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64) + 1
            names = replicas.losses()
            evidence.keep(count, found, names, data, is_first=not before)

        replicas.discard_if(is_left_out)
        return is_left_out, leave_out, sizes

    def _of_all(self, variables: list, sizes: tf.Tensor, others: tf.Tensor):
        """Returns the sizes of all variables, with `others` for those that are not among them."""
        if variables == list(range(len(self._index))):
            return sizes
        if not variables:
            return others
        return tf.tensor_scatter_nd_update(others, [[each] for each in variables], sizes)

    def on_train_begin(self, logs: dict[str, Any] | None = None):
        self.batch, self.step, self._num_restores = None, None, 0
        for evidence in self._evidence:
            evidence.forget()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None):
        step = self.model.train_function
        if step is None:  # A callback has compiled the model: `on_train_end` looks.
            return
        if step.may_have_discarded and self._evidence[0].step >= 0:
            self._act()

    def on_train_end(self, logs: dict[str, Any] | None = None):
        # Workers went on meanwhile. If training stops, it is said only once.
        is_news = self.step is None or self.action == "restore"
        if is_news and self._evidence[0].step >= 0:
            self._act()

    def get_state(self) -> dict:
        """Returns what a `Checkpoint` keeps: how many steps "restore" has left out."""
        return {"num_restores": self._num_restores}

    def set_state(self, state: dict) -> None:
        """Goes on from what `get_state` has returned."""
        self._num_restores = int(state["num_restores"])

    def describe(self):
        return f"leave out steps that are not finite ({self.action})"

    def _act(self):
        first = self._evidence[0]
        self.step = first.step
        self._keep_batch()
        text = self._explanation()
        self._num_restores += first.num_bad
        if self.action == "stop":
            warn(f"{text} Training stops.")
            self.model.stop_training = True
        elif self.action == "raise":
            raise FloatingPointError(text)
        elif self._num_restores > self.max_restores:
            raise FloatingPointError(
                f"{text} That is number {self._num_restores}, and max_restores={self.max_restores}."
            )
        else:
            warn(f"{text} Training goes on with the next batch.")
        for evidence in self._evidence:
            evidence.forget()

    def _keep_batch(self):
        replicas = peers.local_replicas(self.model.distribute_strategy)
        flags = self._evidence[0].flags
        self._found: Any = next(
            (
                evidence
                for replica, evidence in zip(replicas, self._evidence, strict=True)
                if flags[replica]
            ),
            None,
        )
        is_kept = self._found is not None and self._keeps_batch
        self.batch = self._found.batch() if is_kept else None
        if self.batch is None or self.directory is None:
            return
        path = os.path.join(self.directory, f"non-finite-step-{self.step}.npz")
        content = io.BytesIO()
        np.savez(content, *map(_without_objects, _arrays_in(self.batch)))
        try:
            report_file.write(path, content.getvalue())
        except (OSError, tf.errors.OpError) as error:
            warn(f"The batch cannot be written to {path!r}: {error}.")

    def _explanation(self) -> str:
        is_here = self._found is not None
        cause = self._cause() if is_here else "see the message of that worker for the cause"
        return (
            f"Step {self.step} is not finite{self._place()}: {cause}. Its update is left out, and "
            f"{self._weights()}.{self._largest_gradients()}"
        )

    def _largest_gradients(self) -> str:
        norms = np.sqrt(2 * self._sizes_before.numpy())
        if not norms.any():  # There are none in the first step, or with a LossScaleOptimizer.
            return ""
        before = dict(zip(self._paths, map(float, norms), strict=True))
        largest = sorted(before, key=before.__getitem__, reverse=True)[:_NUM_LARGEST]
        named = ", ".join(f"{path} {before[path]:.3g}" for path in largest)
        return f" Largest gradients before ({self._norms()}): {named}."

    def _weights(self) -> str:
        first = self._evidence[0]
        if first.is_first:
            return f"the weights are those of step {first.step - 1}"
        return "the updates that the same call of `train_step` made before it stay"

    def _norms(self) -> str:
        strategy = self.model.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            return "L2 norms"
        return f"L2 norms for the part of replica {peers.local_replicas(strategy)[0]}"

    def _place(self) -> str:
        strategy = self.model.distribute_strategy
        bad = [replica for replica, flag in enumerate(self._evidence[0].flags) if flag]
        if strategy.num_replicas_in_sync == 1:
            return ""
        of_worker = len(peers.local_replicas(strategy))
        workers = "" if peers.count(strategy) == 1 else f"worker {bad[0] // of_worker}, "
        which = f"replica {bad[0]}" if len(bad) == 1 else f"replicas {', '.join(map(str, bad))}"
        return f" on {workers}{which} of {strategy.num_replicas_in_sync}"

    def _cause(self) -> str:
        if self.batch is not None:
            x = _inputs_in(self.batch)
            if not _is_finite(x):
                return "the input contains NaN or infinity"
            if layer := _first_layer(self.model, x):
                return f"first the output of the layer '{layer.name}' ({type(layer).__name__})"
        losses = self._found.losses
        for name, loss in losses.items():
            if not np.isfinite(loss):
                return f"the loss '{name}' is {loss}"
        sizes = zip(self._paths, self._found.sizes, strict=True)
        bad = [path for path, size in sizes if not np.isfinite(size)]
        # The backward pass comes to the last variable first.
        return f"the gradient of '{bad[-1]}'" if bad else "a gradient"


def _inputs_in(batch: Any):
    """Returns the inputs of a batch; all of it if only the train_step knows what they are."""
    try:
        x, *_ = keras.utils.unpack_x_y_sample_weight(batch)
    except ValueError:
        return batch
    return x


def _extra_sum(updates: list) -> str:
    return f"replicas that are not finite, update {len(updates)}"


def _losses_in(extra_sum: str) -> str:
    return f"losses of {extra_sum}"


def _sizes_of(gradients: Sequence) -> tf.Tensor:
    return tf.stack([_size_of(each) for each in gradients]) if gradients else tf.zeros([0])


def _size_of(gradient: Any):
    """Returns half of the squared L2 norm, with one operation that reads the gradient once."""
    if gradient is None:
        return tf.constant(0.0)
    return tf.nn.l2_loss(tf.cast(values_of(gradient), tf.float32))


def _is_finite(structure: Any) -> bool:
    # numpy's kind of bfloat16 is not that of floats.
    floats = [each for each in _arrays_in(structure) if tf.as_dtype(each.dtype).is_floating]
    return all(np.isfinite(each).all() for each in floats)


def _arrays_in(structure: Any) -> list[np.ndarray]:
    """Returns the arrays in a structure; of ragged and sparse tensors, their components."""
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return [np.asarray(leaf) for leaf in leaves if leaf is not None]


def _without_objects(array: np.ndarray) -> np.ndarray:
    """Returns an array that numpy writes, and reads, without pickle: strings get one length."""
    return array.astype(np.bytes_) if array.dtype == object else array


def _first_layer(model: keras.Model, x: Any):
    """Returns the first layer whose output is not finite for an input, or None."""
    found = []

    def note(layer: keras.layers.Layer, output: Any):
        number = layer_outputs.first_number_of(output)
        if number is not None and not np.isfinite(number.numpy()).all():
            found.append(layer)

    layers = list(layer_outputs.by_name(model).values())
    with (
        contextlib.suppress(Exception),  # The outputs of earlier layers are known all the same.
        scopes.outside_scopes(),
        undo.state_kept(model),
        layer_outputs.watched(layers, note),
    ):
        model(x, training=True)
    return found[0] if found else None
