"""Watch the training steps of a program, in the program's own process.

It replaces `kerasdist.make_strategy`, which then gives no strategy, one device, or what the program
(or a flag of the doctor) asks for, and the functions that `fit` and `train_on_batch` call for every
step. After each step it records the model, and after some steps it ends the program.
"""

import contextlib
import functools
import itertools
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist import strategies
from kerasdist.cluster import Cluster
from kerasdist.comparison import recording
from kerasdist.comparison.recording import Recording, Start, Step
from kerasdist.config import DeploymentConfig
from kerasdist.doctor.fingerprints import fingerprints
from kerasdist.doctor.settings import Settings
from kerasdist.plan import Plan
from kerasdist.private import custom_parts, keras_routes, strategy_adapter
from kerasdist.strategies.choice import choose
from kerasdist.strategies.make_strategy import count_gpus
from kerasdist.support import users_line
from kerasdist.training.context import deployment
from kerasdist.training.hooks import differing_layers, divided_values, lazy_logs, scope_checks
from kerasdist.training.replica.draws import Draws
from kerasdist.training.trial.watched_step import WatchedStep, named_values, slots_of, value_of


class Probe:
    """Watches and records the program that runs in this process from now on.

    Args:
        settings: How the program is run.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self._folder = Path(settings.folder) / str(os.getpid())
        self._truth = Recording(Path(settings.truth)) if settings.truth else None
        self._models: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._known_weights: set[int] = set()
        self._num_calls = 0
        self._num_steps = 0
        self._make_strategy = strategies.make_strategy
        self._is_laid = False
        self._draws = Draws(are_alike=settings.is_alike)

    def lay(self) -> None:
        """Replaces the functions that it watches, for the rest of the process."""
        replacements: list[tuple] = [
            (kerasdist, "make_strategy", self._strategy),
            (strategies, "make_strategy", self._strategy),
        ]
        if self._settings.strategy == "none":
            # A plain model has no plan, and the callbacks of kerasdist cannot act on it.
            replacements += [
                (kerasdist, "plan_training", _no_plan),
                (scope_checks, "check_has_strategy", self._end_without_strategy),
            ]
            self._route()
        else:
            replacements.append((warnings, "showwarning", self._keeping(warnings.showwarning)))
        for owner, name, function in replacements:
            setattr(owner, name, function)

    def _keeping(self, show: Callable):
        """Returns what shows a warning, and keeps those of kerasdist."""
        numbers = itertools.count()

        def keep_and_show(message: Warning | str, *where: Any, **options: Any):
            if users_line.is_of_kerasdist(message):
                recording.write(self._folder, f"warning-{next(numbers):03}", str(message))
            show(message, *where, **options)

        return keep_and_show

    def watch(self, model: keras.Model, taken: list | None, run: Callable[[], tuple]):
        """Records a model before its first step and after every step; for `run` see `WatchedStep`.

        Raises:
            SystemExit: These were the last steps to watch.
        """
        if model not in self._models:
            self._record_start(model)
        with self._draws:
            logs, num_steps = run()
        examples = None
        if taken is not None:
            examples = np.concatenate([_fingerprints(model, batch) for batch in taken])
        self._record_step(model, logs, num_steps, examples)
        if self._num_steps >= self._settings.num_steps:
            sys.exit(0)  # Through the `finally` of the program.
        return logs

    def _record_start(self, model: keras.Model):
        """Records a model before its first step, and gives it the weights of the truth."""
        position = self._models[model] = len(self._models)
        if self._settings.is_alike:
            for layer in differing_layers.unsynchronized(model):
                layer.synchronized = True
        was_alike = self._truth is None or self._take_weights(model, self._truth, position)
        self._known_weights |= {id(variable) for variable in model.weights}
        weights = named_values(model, model.weights)
        start = Start(name=model.name, weights=weights, was_alike=was_alike)
        recording.write(self._folder, f"start-{position}", start)

    def _record_step(
        self, model: keras.Model, logs: Any, num_steps: int, examples: np.ndarray | None
    ):
        self._num_steps += num_steps
        unsynchronized = differing_layers.unsynchronized(model)
        step = Step(
            first=self._num_steps - num_steps + 1,
            last=self._num_steps,
            model=self._models[model],
            weights=named_values(model, model.weights),
            slots=named_values(model, slots_of(model)),
            logs=lazy_logs.as_numbers(logs) if isinstance(logs, dict) else {},
            examples=examples,
            draws=tuple(sorted(self._draws.places)),
            unsynchronized=tuple(layer.name for layer in unsynchronized if layer.trainable),
            dtype=model.compute_dtype,
            has_own_step=not custom_parts.is_original_step(model.train_step),
        )
        recording.write(self._folder, f"step-{self._num_calls:06}", step)
        self._num_calls += 1

    def _strategy(
        self,
        config: DeploymentConfig | None = None,
        *,
        cluster: Cluster | None = None,
        **arguments: Any,
    ):
        """Stands in for `make_strategy`, with its arguments."""
        settings = self._settings
        if settings.strategy == "deployment":
            # Addresses in the program would be those of other machines.
            cluster = Cluster.from_env() if settings.is_launched else Cluster.local()
            config = _config(settings) or config
            if not settings.is_rounded:
                arguments["allreduce_dtype"] = None
            strategy = self._make_strategy(config, cluster=cluster, **arguments)
            if dtype := deployment.of(strategy).allreduce_dtype:
                recording.write(self._folder, "allreduce_dtype", dtype)
            self._route()
            return strategy
        return self._truth_strategy(config, cluster)

    def _truth_strategy(self, config: DeploymentConfig | None, cluster: Cluster | None):
        config = _config(self._settings) or config
        cluster = Cluster.from_env(meet=False) if cluster is None else cluster
        choice = choose(config, cluster, num_gpus=count_gpus())
        recording.write(self._folder, "deployment", choice)
        if choice.num_ps:
            sys.exit(0)
        is_on_cpu = "CPU" in choice.devices[0]
        if self._settings.strategy == "none":
            if is_on_cpu:
                tf.config.set_visible_devices([], "GPU")
            return _StandIn(tf.distribute.get_strategy(), choice.num_replicas)
        one = DeploymentConfig(clone_on_cpu=is_on_cpu)
        strategy = self._make_strategy(one, cluster=Cluster.local())
        self._route()
        return _StandIn(strategy, choice.num_replicas)

    def _end_without_strategy(self, _: keras.Model, what: str):
        recording.write(self._folder, "needs_strategy", what)
        sys.exit(0)

    def _route(self):
        """Routes before what the strategy has routed, so it must be called after that."""
        if self._is_laid:
            return
        self._is_laid = True
        keras_routes.route({"make_train_function": self._make_train_function})

    def _make_train_function(self, original: Callable, model: keras.Model, force: bool = False):
        if isinstance(model.train_function, WatchedStep):
            model.train_function = model.train_function.inside
        original(model, force)
        model.train_function = WatchedStep(
            model.train_function,
            num_steps=model.steps_per_execution,
            watch=functools.partial(self.watch, model),
            strategy=model.distribute_strategy,
        )
        return model.train_function

    def _take_weights(self, model: keras.Model, truth: Recording, position: int) -> bool:
        """Sets the weights that no earlier model has; returns whether they were equal before."""
        if not truth.has_start(position):
            return True
        values = truth.start(position).weights.values()
        was_alike = True
        for variable, value in zip(model.weights, values, strict=False):
            is_known = id(variable) in self._known_weights or variable.shape != value.shape
            if not is_known and not np.array_equal(value_of(model, variable), value):
                variable.assign(value)
                was_alike = False
        return was_alike


class _StandIn(tf.distribute.Strategy):
    """A strategy in whose scope models belong to another one.

    Programs scale their batch size by its number of replicas: that must be the deployment's.

    Args:
        strategy: The strategy that models belong to; TensorFlow's default for none.
        num_replicas: That of the deployment.
    """

    def __init__(self, strategy: Any, num_replicas: int):
        super().__init__(strategy.extended)
        self._strategy = strategy
        self._num_replicas = num_replicas

    @property
    def num_replicas_in_sync(self) -> int:
        return self._num_replicas

    def scope(self):
        if strategy_adapter.is_adapted(self._strategy):
            return self._strategy.scope()
        return contextlib.nullcontext(self)  # No strategy at all.


def _no_plan(*_: Any, **__: Any) -> Plan:
    return Plan(strategy="none", devices=("CPU:0",))


def _config(settings: Settings) -> DeploymentConfig | None:
    """Returns what the flags of the doctor ask for, in place of the program's own config."""
    if not settings.num_clones and not settings.num_workers:
        return None
    num_clones = settings.num_clones or 1
    return DeploymentConfig(
        num_clones=num_clones,
        clone_on_cpu=count_gpus() < num_clones,
        num_replicas=settings.num_workers or 1,
    )


def _fingerprints(model: keras.Model, batch: Any) -> np.ndarray:
    if not divided_values.is_distributed(batch):
        return fingerprints(batch)
    parts = model.distribute_strategy.experimental_local_results(batch)
    return np.concatenate([fingerprints(part) for part in parts])
