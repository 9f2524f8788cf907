"""What watches the training steps of a program, in the program's own process.

It stands before `kerasdist.make_strategy`, which then gives no strategy, one device, or what the
program (or a flag of the doctor's) asks for; and before the functions that `fit` and
`train_on_batch` call for every step. After each step it records the model, and after some steps it
ends the program.
"""

import contextlib
import itertools
import os
import sys
import weakref
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist import strategies
from kerasdist.cluster import Cluster
from kerasdist.config import DeploymentConfig
from kerasdist.doctor import recording
from kerasdist.doctor.draws import Draws
from kerasdist.doctor.fingerprints import fingerprints
from kerasdist.doctor.recording import Deployment, Recording, Settings, Start, Step
from kerasdist.plan import Plan
from kerasdist.strategies.choice import choose
from kerasdist.strategies.make_strategy import count_gpus
from kerasdist.training import batch_statistics, batches, keras_adapter, lazy_logs, scope_checks
from kerasdist.training.epoch_iterator import GlobalBatches


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
        self._next_seed = keras.random.SeedGenerator.next
        self._is_laid = False
        self.draws = Draws(are_alike=settings.is_alike)

    def lay(self) -> None:
        """Puts itself before the functions that it watches, for the rest of the process."""
        replacements = [
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
        for owner, name, function in replacements:
            setattr(owner, name, function)

    def before(self, model) -> None:
        """Records a model before its first step, and gives it the weights of the truth."""
        if model in self._models:
            return
        position = self._models[model] = len(self._models)
        if self._settings.is_alike:
            for layer in batch_statistics.unsynchronized_layers(model):
                layer.synchronized = True
        was_alike = self._truth is None or self._take_weights(model, self._truth, position)
        self._known_weights |= {id(variable) for variable in model.weights}
        start = Start(name=model.name, weights=_values(model, model.weights), was_alike=was_alike)
        recording.write(self._folder, f"start-{position}", start)

    def after(self, model, logs, *, num_steps: int, examples: np.ndarray | None) -> None:
        """Records a model after a step.

        Raises:
            SystemExit: These were the last steps to watch.
        """
        self._num_steps += num_steps
        slots = [variable for each in _optimizers(model) for variable in each.variables]
        unsynchronized = batch_statistics.unsynchronized_layers(model)
        step = Step(
            first=self._num_steps - num_steps + 1,
            last=self._num_steps,
            model=self._models[model],
            weights=_values(model, model.weights),
            slots=_values(model, slots),
            logs=lazy_logs.as_numbers(logs) if isinstance(logs, dict) else {},
            examples=examples,
            draws=tuple(sorted(self.draws.places)),
            unsynchronized=tuple(layer.name for layer in unsynchronized if layer.trainable),
            dtype=model.compute_dtype,
            has_own_step=not keras_adapter.is_stock_train_step(model),
        )
        recording.write(self._folder, f"step-{self._num_calls:06}", step)
        self._num_calls += 1
        if self._num_steps >= self._settings.num_steps:
            sys.exit(0)  # Through the `finally` of the program.

    def _strategy(self, config=None, *, cluster=None, **arguments):
        """Stands in for `make_strategy`, with its arguments."""
        settings = self._settings
        if settings.strategy == "deployment":
            # Addresses that the program has are those of other machines.
            cluster = Cluster.from_env() if settings.is_launched else Cluster.local()
            config = _config(settings) or config
            strategy = self._make_strategy(config, cluster=cluster, **arguments)
            self._route()
            return strategy
        return self._truth_strategy(config, cluster)

    def _truth_strategy(self, config, cluster):
        config = _config(self._settings) or config
        cluster = Cluster.from_env() if cluster is None else cluster
        choice = choose(config, cluster, num_gpus=count_gpus())
        deployment = Deployment(
            strategy=f"{choice.strategy} ({choice.reason})",
            num_clones=len(choice.devices),
            num_workers=choice.num_workers,
            num_ps=choice.num_ps,
        )
        recording.write(self._folder, "deployment", deployment)
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

    def _end_without_strategy(self, _, what):
        recording.write(self._folder, "needs_strategy", what)
        sys.exit(0)

    def _route(self):
        """Comes before what the strategy has laid, so it must be called after that."""
        if self._is_laid:
            return
        self._is_laid = True
        keras_adapter.route("make_train_function", self._make_train_function)
        if self._settings.is_alike:
            keras.random.SeedGenerator.next = self._next_seed

    def _make_train_function(self, stock, model, force=False):
        if isinstance(model.train_function, _WatchedStep):
            model.train_function = model.train_function.step
        stock(model, force)
        model.train_function = _WatchedStep(model.train_function, model, self)
        return model.train_function

    def _take_weights(self, model, truth, position) -> bool:
        """Sets the weights that no earlier model has; returns whether they were the same before."""
        if not truth.has_start(position):
            return True
        values = truth.start(position).weights.values()
        was_alike = True
        for variable, value in zip(model.weights, values, strict=False):
            is_known = id(variable) in self._known_weights or variable.shape != value.shape
            if not is_known and not np.array_equal(_value(model, variable), value):
                variable.assign(value)
                was_alike = False
        return was_alike


class _WatchedStep:
    """The train function of a model, with the probe before and after it.

    Args:
        step: The function.
        model: Its model.
        probe: Is told.
    """

    def __init__(self, step, model, probe: Probe):
        self.step = step
        self._model = weakref.ref(model)
        self._probe = probe

    def __getattr__(self, name):
        return getattr(self.step, name)

    def __call__(self, data):
        model = self._model()
        assert model is not None  # It calls.
        self._probe.before(model)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._probe.draws)
            if getattr(getattr(data, "source", None), "next_size", None) is not None:
                logs, examples = self.step(data), None  # Each worker reads its own part.
                num_steps = data.num_taken
            else:
                taken = _take(data, model.steps_per_execution)
                num_steps = len(taken)
                examples = np.concatenate([_fingerprints(model, batch) for batch in taken])
                logs = self.step(stack.enter_context(_instead(data, taken)))
        self._probe.after(model, logs, num_steps=num_steps, examples=examples)
        return logs


class _StandIn(tf.distribute.Strategy):
    """A strategy in whose scope models belong to another one.

    Programs scale their batch size by its number of replicas: that must be the deployment's.

    Args:
        strategy: In whose scope they are created.
        num_replicas: Of the deployment.
    """

    def __init__(self, strategy, num_replicas: int):
        super().__init__(strategy.extended)
        self._strategy = strategy
        self._num_replicas = num_replicas

    @property
    def num_replicas_in_sync(self) -> int:
        return self._num_replicas

    def scope(self):
        if keras_adapter.is_adapted(self._strategy):
            return self._strategy.scope()
        return contextlib.nullcontext(self)  # No strategy at all.


def _no_plan(*_, **__) -> Plan:
    return Plan(strategy="none", devices=("CPU:0",))


def _config(settings) -> DeploymentConfig | None:
    """Returns what the flags of the doctor ask for, in place of the program's own config."""
    if not settings.num_clones and not settings.num_workers:
        return None
    num_clones = settings.num_clones or 1
    return DeploymentConfig(
        num_clones=num_clones,
        clone_on_cpu=count_gpus() < num_clones,
        num_replicas=settings.num_workers or 1,
    )


def _take(data, num_steps: int) -> list:
    """Takes the batches of a call from what `fit` hands to a train function.

    Raises:
        StopIteration: There is none left.
    """
    if isinstance(data, GlobalBatches):
        num_steps = data.num_steps
    batches = _next_batches(data, num_steps)
    if not batches and isinstance(data, GlobalBatches) and data.restart():
        batches = _next_batches(data, num_steps)
    if not batches:
        raise StopIteration
    return batches


def _next_batches(data, num_steps) -> list:
    iterator = data.iterator if isinstance(data, GlobalBatches) else data
    return list(itertools.islice(iterator, num_steps))


@contextlib.contextmanager
def _instead(data, batches: list):
    """Gives what a train function takes, with these batches in it."""
    if not isinstance(data, GlobalBatches):
        yield iter(batches)
        return
    source, iterator = data.source, data.source.iterator
    source.iterator = iter(batches)
    try:
        yield data
    finally:
        source.iterator = iterator


def _fingerprints(model, batch) -> np.ndarray:
    if not batches.is_distributed(batch):
        return fingerprints(batch)
    parts = model.distribute_strategy.experimental_local_results(batch)
    return np.concatenate([fingerprints(part) for part in parts])


def _optimizers(model) -> list:
    """Returns the optimizers of a model: its own, and those that it keeps as a GAN does."""
    found = [each for each in vars(model).values() if isinstance(each, keras.optimizers.Optimizer)]
    return list({id(each): each for each in found}.values())


def _values(model, variables) -> dict[str, np.ndarray]:
    values: dict[str, np.ndarray] = {}
    for variable in variables:
        name = variable.path
        while name in values:
            name += "'"
        values[name] = _value(model, variable)
    return values


def _value(model, variable) -> np.ndarray:
    """Returns the mean over the copies of this process: where they differ, none is right."""
    copies = model.distribute_strategy.experimental_local_results(variable.value)
    arrays = [np.asarray(copy) for copy in copies]
    return arrays[0] if len(arrays) == 1 else np.mean(arrays, axis=0, dtype="float64")
