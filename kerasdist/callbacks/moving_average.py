"""Moving averages of the weights."""

import contextlib
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import patterns
from kerasdist.private import keras_layers
from kerasdist.support.checks import check_bool, check_decay, check_int
from kerasdist.support.unique import unique
from kerasdist.training.context import traits
from kerasdist.training.hooks.divided_values import is_sharded, parts_of
from kerasdist.training.hooks.update_callback import StepCallback
from kerasdist.training.replica import replicas


class MovingAverage(StepCallback):
    """Keeps an exponential moving average of the weights, to evaluate and export instead of them.

    After each update n the average moves to `decay * average + (1 - decay) * variable`, with the
    decay min(decay, (1 + n) / (10 + n)), so that it follows quickly at first. Averages start at the
    values that the variables have when the first `fit` begins, and live on in the callback: give
    the same one to the next `fit`. The average of a layer that is unfrozen later starts at that
    moment; that of a frozen layer converges to its weights.

    Args:
        decay: Largest decay per update, from 0 to less than 1.
        num_updates: Whether the decay warms up with n = `optimizer.iterations`.
        every_steps: Updates between two moves of the average; each move takes one decay, so choose
            a smaller one for a larger number.
        trainable: Whether trainable variables are averaged.
        batch_statistics: Whether the moving statistics of BatchNormalization are averaged a second
            time, as the Inception trainers did.
        validate: Whether validation during `fit` uses the averages. The weights themselves stay
            outside of it: what `ModelCheckpoint(save_best_only=True)` saves and
            `EarlyStopping(restore_best_weights=True)` restores by "val_loss" are not the averages
            that it was computed with. To keep those, use `Checkpoint(keep_best=1)` instead, which
            also holds the averages, and afterwards
            `kerasdist.warm_start(model, checkpoint.best, averages=True)`.

    Raises:
        TypeError, ValueError: A value has the wrong type or is out of range, or there is nothing to
            average.

    Example:
        ```python
        average = kerasdist.callbacks.MovingAverage(decay=0.999)
        model.fit(dataset, callbacks=[average])
        with average.applied(model):
            model.save("averaged.keras")
        ```

    Source: tf.train.ExponentialMovingAverage(decay, num_updates), as the Inception trainers used
    it.
    """

    def __init__(
        self,
        decay: float = 0.9999,
        *,
        num_updates: bool = True,
        every_steps: int = 1,
        trainable: bool = True,
        batch_statistics: bool = True,
        validate: bool = False,
    ):
        super().__init__()
        check_decay("decay", decay)
        check_int("every_steps", every_steps, at_least=1)
        check_bool("num_updates", num_updates)
        check_bool("trainable", trainable)
        check_bool("batch_statistics", batch_statistics)
        check_bool("validate", validate)
        if not trainable and not batch_statistics:
            raise ValueError(
                "There is nothing to average. Received: trainable=False, batch_statistics=False."
            )
        self.decay = decay
        self.num_updates = num_updates
        self.every_steps = every_steps
        self.trainable = trainable
        self.batch_statistics = batch_statistics
        self.validate = validate
        self._averages: list[tuple[keras.Variable, tf.Variable]] = []
        self._restored: dict[str, np.ndarray] = {}
        self._swapped: list[tuple[keras.Variable, tf.Variable]] = []  # All while applied, or none.

    @contextlib.contextmanager
    def applied(self, model: keras.Model) -> Generator[None]:
        """Puts the averages into `model`, and takes them out again whatever happens inside.

        Weights and averages swap places, so no third copy of them is needed.

        Args:
            model: The model of the `fit` that this callback was given to.

        Raises:
            RuntimeError: There are no averages of this model yet.
        """
        self._check_knows(model)
        if self._is_applied:  # Already, around this: they stay in until that ends.
            yield
            return
        try:
            self._put_in()
            yield
        finally:
            try:
                self._take_out()
            except BaseException:  # Ctrl-C must not leave half of them in.
                self._take_out()
                raise

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns the averages by the paths of their variables, also while they are applied."""
        if not self._averages:
            return dict(self._restored)
        return {
            name: _read(variable.value if self._is_applied else average)
            for name, (variable, average) in self._named().items()
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Sets the averages from `get_state()`, now or when the next `fit` begins.

        Raises:
            ValueError: An average is missing or has another shape; nothing is set.
        """
        named = self._named()
        values = {name: _checked(state, name, pair[0]) for name, pair in named.items()}
        self._restored = dict(state)
        for name, (variable, average) in named.items():
            (variable if self._is_applied else average).assign(values[name])

    def prepare(self, model: keras.Model):
        variables = self._variables_of(model)
        if not variables:
            raise ValueError(
                f"There is nothing to average in model '{model.name}'. Received: trainable="
                f"{self.trainable}, batch_statistics={self.batch_statistics}."
            )
        held = [variable for variable, _ in self._averages]
        held_ids = _ids_of(held)
        if not held_ids <= _ids_of(model.variables):
            raise ValueError(
                "This MovingAverage holds the averages of another model. Make a new one for model "
                f"'{model.name}'."
            )
        self._trained = _ids_of(model.trainable_variables)
        # Layers may have been frozen or unfrozen since the last `fit`.
        variables = held + [each for each in variables if id(each) not in held_ids]
        self._averages += [
            (variable, self._make_average(variable, name))
            for name, variable in list(patterns.by_unique_path(variables).items())[len(held) :]
        ]

    def after_update(self, variables: list[keras.Variable]):
        updated = {id(variable) for variable in variables}
        # If a step makes several updates, statistics move only once.
        is_first = replicas.is_first_update()
        moving = [
            pair
            for pair in self._averages
            if id(pair[0]) in updated or (is_first and id(pair[0]) not in self._trained)
        ]
        if self.every_steps == 1:
            self._move(moving)
        else:
            count = replicas.num_updates()
            tf.cond(count % self.every_steps == 0, lambda: self._move(moving), lambda: None)

    def validating(self, model: keras.Model):
        return self.applied(model) if self.validate else super().validating(model)

    def variables_of_replicas(self):
        return [average for variable, average in self._averages if not variable.trainable]

    def describe(self):
        warm_up = ", warming up" if self.num_updates else ""
        return f"then average with decay={self.decay:g}{warm_up}"

    def _move(self, averages: list[tuple[keras.Variable, tf.Variable]]):
        decay: Any = self.decay
        if self.num_updates:
            count = tf.cast(replicas.num_updates(), tf.float32)
            decay = tf.minimum(decay, (1 + count) / (10 + count))
        for variable, average in averages:
            pairs = zip(parts_of(variable.value), parts_of(average), strict=True)
            for part, average_of_part in pairs:
                with self._device_of(part):
                    _move_towards(average_of_part, tf.convert_to_tensor(part), 1 - decay)

    def _device_of(self, part: tf.Variable):
        # On a parameter server neither of the two is sent for.
        is_remote = traits.has_remote_variables(self.model.distribute_strategy)
        return tf.device(part.device) if is_remote else contextlib.nullcontext()

    def _variables_of(self, model: keras.Model) -> list[keras.Variable]:
        variables = list(model.trainable_variables) if self.trainable else []
        if self.batch_statistics:
            for layer in keras_layers.batch_normalizations_of(model):
                variables += layer.non_trainable_variables
        # A frozen BatchNormalization lists its gamma and beta as well.
        return unique(variables)

    def _make_average(self, variable: Any, name: str):
        # One that is averaged later than others begins with what it is, unless a state has it.
        is_restored = name in self._restored if self._averages else bool(self._restored)
        value = _checked(self._restored, name, variable) if is_restored else _read(variable.value)
        arguments = {
            "trainable": False,
            "dtype": variable.dtype,
            "name": f"{variable.name}_average",
        }
        strategy = self.model.distribute_strategy
        if traits.has_remote_variables(strategy):
            with strategy.extended.colocate_vars_with(variable.value):
                return tf.Variable(value, **arguments)
        return tf.Variable(
            value,
            synchronization=variable.value.synchronization,
            aggregation=variable.value.aggregation,
            **arguments,
        )

    def _named(self) -> dict[str, tuple]:
        names = patterns.by_unique_path(variable for variable, _ in self._averages)
        return dict(zip(names, self._averages, strict=True))

    def _check_knows(self, model: keras.Model):
        known = _ids_of(variable for variable, _ in self._averages)
        if not known or not known <= _ids_of(model.variables):
            raise RuntimeError(
                f"There are no averages of model '{model.name}' yet. Give this callback to its "
                "`fit` first."
            )

    @property
    def _is_applied(self) -> bool:
        return bool(self._swapped)

    def _put_in(self):
        for pair in self._averages:
            _swap(*pair)
            self._swapped.append(pair)

    def _take_out(self):
        while self._swapped:
            _swap(*self._swapped[-1])
            self._swapped.pop()


def _swap(variable: Any, average: Any):
    """Swaps a weight and its average: both or, if it is interrupted, none."""
    weight, averaged = _read(variable.value), _read(average)
    try:
        variable.assign(averaged)
        average.assign(weight)
    except BaseException:
        variable.assign(weight)
        average.assign(averaged)
        raise


def _ids_of(variables: Iterable) -> set[int]:
    return {id(variable) for variable in variables}


def _move_towards(average: Any, value: Any, share: Any) -> None:
    # average -= share * (average - value), with one pass over the memory less.
    tf.raw_ops.ResourceApplyGradientDescent(
        var=average.handle, alpha=tf.cast(share, value.dtype), delta=average - value
    )


def _read(variable: Any) -> np.ndarray:
    # `.numpy()` of a variable with a value per replica is the mean over them.
    return variable.numpy() if is_sharded(variable) else variable.read_value().numpy()


def _checked(state: Mapping[str, np.ndarray], name: str, variable: Any):
    if name not in state:
        raise ValueError(
            f"The restored averages lack '{name}'. They hold: {', '.join(sorted(state))}."
        )
    if state[name].shape != tuple(variable.shape):
        raise ValueError(
            f"The restored average of '{name}' has shape {state[name].shape}, and the variable "
            f"{tuple(variable.shape)}."
        )
    return state[name]
