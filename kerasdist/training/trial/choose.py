"""Choose how the replicas compute a step: the first mode whose outcome is that of one device.

On several replicas a loss, a log and an output count as means over the examples. A program that
sums, divides by something of its own or compares examples with each other means something else, and
nothing in its code says so. So some examples of the first batch go through the step several times,
operation by operation: all of them on every replica, as one device has them, and divided. Random
numbers are made alike, and nothing that is assigned stays, no variable and no attribute.

Modes are tried in this order, and each may cost more than the one before:

1. The replicas divide the batch.
2. They divide it, and the user's compiled losses see all examples (`losses`).
3. Each has the whole batch: no faster than one device, and with its weights.

Where none of them gives what one device does, the batch is divided, and a warning says what is not
the same. What is run and what of it is compared differs: see `fit`, `evaluate` and `predict`.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import keras

from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.losses import batch_statistics, whole_losses, whole_metrics
from kerasdist.training.step import graph_errors, replica_run
from kerasdist.training.trial import compare, examples, losses, run, undo
from kerasdist.training.trial.examples import HowMany
from kerasdist.training.trial.outcome import Outcome
from kerasdist.training.trial.run import Mode, Tried


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked: does this step give what one device gives?

    Attributes:
        model: A compiled model whose variables exist.
        step: Its train_step, test_step or predict_step, called with the data of a replica.
        batch: The first global batch: tensors [examples, ...].
        may_be_whole: Whether every replica can have the whole batch.
        differing: How its tensors differ in the length of their first axis; None where they do not.
    """

    model: keras.Model
    step: Callable
    batch: Any
    may_be_whole: bool = False
    differing: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What is not that of one device in a mode.

    Attributes:
        computed: What the step computes: something true where it is another number.
        outcome: What the replicas gave.
        deviates: Whether what they assign by themselves is not the same on all of them.
    """

    computed: Any
    outcome: Outcome = dataclasses.field(default_factory=Outcome)
    deviates: bool = False

    def __bool__(self):
        return bool(self.computed) or self.deviates


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How the replicas are to compute a step.

    Attributes:
        mode: The mode that gives what one device gives; `Mode.DIVIDED` where none does.
        texts: What is not that of one device where the batch is divided, in words.
    """

    mode: Mode
    texts: list[str]


class Trial(abc.ABC):
    """A step with some of its examples: how it is run, and what of it is compared.

    Args:
        question: What is asked.
        how_many: How many examples of the batch.

    Attributes:
        promise: What several replicas are to do, in words.
        modes: Those that are tried, in this order.
        further_sizes: The numbers of examples that are tried where a few show nothing.
        tried: The step and the examples.
        truth: The outcome of one device.
        twin: The same with inputs that rounding has touched.
        tolerance: How much of a result may be rounding.
    """

    promise: str
    modes: tuple[Mode, ...] = tuple(Mode)
    further_sizes: tuple[HowMany, ...] = ("one", "most")
    tried: Tried
    truth: Outcome
    twin: Outcome
    tolerance: float

    def __init__(self, question: Question, how_many: HowMany):
        self.question, self.how_many = question, how_many
        self.model, self.strategy = question.model, question.model.distribute_strategy
        self.num_replicas = self.num_replicas_of(self.strategy)

    @classmethod
    def warn_of_differences(
        cls,
        model: keras.Model,
        step: Callable,
        batch: Any,
        *,
        note_unchecked: Callable[[str], None],
        may_repeat: bool = False,
        differing: str | None = None,
        is_said: bool = False,
    ) -> bool:
        """Tries a step and warns where it does not give what one device gives.

        Args:
            model: See `Question`.
            step: See `Question`.
            batch: See `Question`.
            note_unchecked: Called with words about a trial that fails.
            may_repeat: Whether every replica can have the whole batch.
            differing: See `Question`.
            is_said: Whether a warning has told of the same parts, so that none is given.

        Returns:
            Whether every replica is to have the whole batch, because only then the step does what
            it does on one device.
        """
        strategy = model.distribute_strategy
        question = Question(
            model=model, step=step, batch=batch, may_be_whole=may_repeat, differing=differing
        )
        try:
            choice = choose(cls, question)
        except Exception as error:  # noqa: BLE001
            # The program may mean no other batch than its own.
            if not is_said:
                what = f"{strategy.num_replicas_in_sync} replicas {cls.promise}"
                note_unchecked(graph_errors.describe_unchecked(what, error))
            return False
        texts, is_whole = choice.texts, choice.mode is Mode.WHOLE
        if is_whole:
            texts = replica_run.with_repeated(texts, strategy)
        for text in () if is_said else texts:
            warn(text)
        return is_whole

    @staticmethod
    def num_replicas_of(strategy: Any) -> int:
        """Returns the replicas that divide a batch."""
        return strategy.num_replicas_in_sync

    @staticmethod
    def any_of(strategy: Any, is_so: bool) -> bool:
        """Whether it is so on any of the workers that ask together."""
        return peers.any_of(strategy, is_so)

    @staticmethod
    @contextlib.contextmanager
    def around(model: keras.Model) -> Generator[None]:
        """Is entered around a trial."""
        with (
            undo.without_traces(model),
            batch_statistics.synchronized(model),  # A difference that has a warning of its own.
            whole_metrics.updated_with_all(model),
        ):
            yield

    def try_parts(self) -> None:
        """Runs the step with the parts of this worker alone; fails on all workers where it does."""
        with undo.failing_together(self.strategy):
            run.try_parts(self.tried)

    def compare_logs(self, ours: Outcome) -> compare.LogDifferences:
        """Returns what the step returns and counts that is not the same."""
        metrics = self.tried.sums_of(self.model)
        return compare.logs(metrics, self.truth, self.twin, ours, self.tolerance)

    @abc.abstractmethod
    def compare(self, mode: Mode) -> Found:
        """Returns what is not that of one device in a mode; all workers call it."""

    @abc.abstractmethod
    def describe(self, found: Found, mode: Mode) -> list[str]:
        """Returns in words what was found where the batch is divided, and `mode` is chosen."""


def choose(make: type[Trial], question: Question) -> Choice:
    """Returns how the replicas are to compute a step; all workers that ask together call it.

    Args:
        make: The trial, which is made for each number of examples.
        question: What is asked.

    Raises:
        Exception: The step cannot be tried: it fails on one device as well.
    """
    model = question.model
    return examples.in_float32_first(model, lambda: _with_enough_examples(make, question))


def _with_enough_examples(make: type[Trial], question: Question) -> Choice:
    """Tries a few examples, or more where they are too few.

    Where a few have shown nothing, one for each replica is looked at as well, and nearly all where
    that costs little. Where a few fail, it is the batch as it is: a program may take the four
    largest losses, say, or have a mask that leaves none of them.
    """
    model, batch = question.model, question.batch
    strategy = model.distribute_strategy
    sizes = examples.OutputSizes()
    try:
        with sizes.counted(model):
            choice = _of_size(make, question, "few")
    except Exception:  # The program may raise anything with so few examples.  # noqa: BLE001
        return _of_size(make, question, "all")
    number = make.num_replicas_of(strategy)
    are_possible = {
        "one": examples.may_be_one(batch, number),
        "most": examples.may_be_most(batch, number, sizes),
    }
    for how_many in make.further_sizes:
        if make.any_of(strategy, bool(choice.texts)):
            return choice
        if not make.any_of(strategy, not are_possible[how_many]):
            # The few have been tried, and the program may raise anything with others.
            with contextlib.suppress(Exception):
                choice = _of_size(make, question, how_many)
    return choice


def _of_size(make: type[Trial], question: Question, how_many: HowMany) -> Choice:
    model, may_be_whole = question.model, question.may_be_whole
    with make.around(model):
        trial = make(question, how_many)
        try:
            trial.try_parts()
            mode, found = _divided(trial)
        except Exception as error:  # The program may raise anything with a part of its batch.
            is_hopeless = how_many in examples.TOO_FEW or not may_be_whole
            if is_hopeless or not finds_nothing(trial, Mode.WHOLE):
                raise
            text = graph_errors.describe_failure(error, model, question.step, question.differing)
            return Choice(mode=Mode.WHOLE, texts=[text])
        is_whole = may_be_whole and trial.any_of(trial.strategy, bool(found))
        if is_whole and finds_nothing(trial, Mode.WHOLE):
            mode = Mode.WHOLE
        return Choice(mode=mode, texts=trial.describe(found, mode))


def _divided(trial: Trial) -> tuple[Mode, Found]:
    """Compares with the batch divided, and with compiled losses of all examples where that helps.

    So, too, where one of the user's losses is no mean over the examples, which need not show in the
    ones that are compared. Where it then finds nothing on any worker, the losses see all examples
    from now on.
    """
    found = trial.compare(Mode.DIVIDED)
    mode = Mode.DIVIDED_WITH_ALL_IN_LOSSES
    if mode not in trial.modes or not whole_losses.may_see_all(trial.model):
        return Mode.DIVIDED, found
    is_wanted = bool(found.computed) or not losses.are_means(
        trial.truth.losses, trial.tolerance, trial.question.batch
    )
    if not trial.any_of(trial.strategy, is_wanted):
        return Mode.DIVIDED, found
    with losses.seeing_all(trial.model) as keep:
        of_all = _tried(trial, mode)
        if trial.any_of(trial.strategy, of_all is None or bool(of_all.computed)):
            return Mode.DIVIDED, found
        keep()
    assert of_all is not None
    return mode, of_all


def finds_nothing(trial: Trial, mode: Mode) -> bool:
    """Whether a mode gives what one device gives, on all workers."""
    found = _tried(trial, mode)
    return not trial.any_of(trial.strategy, found is None or bool(found))


def _tried(trial: Trial, mode: Mode) -> Found | None:
    """Returns what is found in a mode; None where it fails."""
    try:
        return trial.compare(mode)
    except Exception:  # The program may raise anything; what was found before is said.  # noqa: BLE001
        return None
