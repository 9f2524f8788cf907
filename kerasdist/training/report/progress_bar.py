"""The progress bar of `fit`, `evaluate` and `predict` under our strategies."""

import math
import sys
import time
from typing import Any

import keras

from kerasdist.support import terminal
from kerasdist.training.context import running_call
from kerasdist.training.hooks.lazy_logs import STALE, LazyLogs

# `callbacks.Throughput` adds it to the logs of an epoch; the line has a rate already.
_RATE = "examples_per_second"

# More are as many as there is time for: "Epoch 2/inf".
MOST_EPOCHS = 10**9


class ProgressBar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar, with examples per second, which reads the logs only to be redrawn.

    It replaces Keras' own. The rate counts the examples of the global batches since the first step
    of the epoch: neither the time in which TensorFlow compiles that step counts, nor that of
    validation. With `verbose="auto"` a terminal, also that of a launch, or a notebook
    gets a bar, and a file one line per epoch.
    """

    # A person sees no difference, and each redraw waits for the devices.
    redraw_secs = 0.1

    def __init__(self):
        super().__init__()
        self._last_redraw = 0.0
        self._is_in_fit = False
        self._first_step: tuple[float, int] | None = None  # None if no rate is to be shown.
        self._train_function: Any = None
        self._not_shown: dict = {}
        self._rate = self._stale = ""  # What is shown behind the time of a step.

    def set_params(self, params: dict) -> None:
        verbose = params["verbose"]
        if verbose == "auto":
            is_shown_by_launch = terminal.is_shown_by_launch()
            if is_shown_by_launch:
                self.redraw_secs = 0.5  # All of them stay in the log.
            is_seen = is_shown_by_launch or terminal.is_terminal() or "ipykernel" in sys.modules
            verbose = 1 if is_seen else 2
        epochs = math.inf if params["epochs"] > MOST_EPOCHS else params["epochs"]
        super().set_params({**params, "verbose": verbose, "epochs": epochs})

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._first_step = None
        self._not_shown = {}
        self._rate = self._stale = ""

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        # A callback that compiles the model in its last step leaves it without one.
        self._train_function = self.model.train_function or self._train_function
        if self._first_step is None:
            self._first_step = time.perf_counter(), self._num_examples()
        self._count_steps(batch)
        if self._is_due(logs):
            self._show_rate()
            super().on_train_batch_end(self.seen - 1, self._without_stale(logs))
            self._note_line(is_open=True)

    def on_train_begin(self, logs: dict | None = None) -> None:
        super().on_train_begin(logs)
        self._is_in_fit = True

    def on_test_begin(self, logs: dict | None = None) -> None:
        super().on_test_begin(logs)
        if self._is_in_fit:
            self._end_rate()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._is_in_fit:
            return
        self.seen = batch + 1
        if self._is_due(logs):
            super().on_test_batch_end(batch, logs)
            self._note_line(is_open=True)

    def on_test_end(self, logs: dict | None = None) -> None:
        super().on_test_end({**self._not_shown, **(logs or {})})
        if not self._is_in_fit:
            self._note_line(is_open=False)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._end_rate()
        self._count_steps(self.seen - 1)
        target = self.target
        if target is not None:
            # An epoch that was stopped shows how far it got.
            self.target = min(target, self.seen)
        shown = {**self._not_shown, **(logs or {})}
        shown.pop(_RATE, None)
        super().on_epoch_end(epoch, self._without_stale(shown))
        self._note_line(is_open=False)
        if target is not None:
            self.target = target

    def _without_stale(self, logs: dict | None) -> dict | None:
        """Shows the log that is a count beside the rate, and returns the others."""
        if logs is None or STALE not in logs:
            return logs
        others = dict(logs)
        self._stale = f" - {others.pop(STALE):.0f} stale"
        self._name_unit()
        return others

    def _count_steps(self, batch: int) -> None:
        # A Checkpoint waits for all steps that asynchronous workers make: those end together, and
        # have no hook each.
        self.seen = running_call.num_steps_of_epoch(self.model, batch)

    def _is_due(self, logs: dict | None) -> bool:
        """Whether to redraw with the logs of a step; if not, keeps what the last line may show."""
        if self.verbose != 1:
            return False
        now = time.perf_counter()
        if now - self._last_redraw < self.redraw_secs:
            self._not_shown = _what_was_read(logs) or self._not_shown
            return False
        self._last_redraw = now
        self._not_shown = {}
        return True

    def _note_line(self, *, is_open: bool) -> None:
        if self.verbose == 1 and keras.config.is_interactive_logging_enabled():
            terminal.note_line(is_open=is_open)

    def _end_rate(self) -> None:
        self._show_rate()
        self._first_step = None

    def _show_rate(self) -> None:
        if self._first_step is None or self.progbar is None:
            return
        start, num_examples = self._first_step
        secs = time.perf_counter() - start
        num_examples = self._num_examples() - num_examples
        if num_examples > 0:  # A `fit` in a callback begins to count anew.
            self._rate = f" - {num_examples / secs:.0f} examples/s"
            self._name_unit()

    def _name_unit(self) -> None:
        if self.progbar is not None:
            self.progbar.unit_name = f"step{self._rate}{self._stale}"

    def _num_examples(self) -> int:
        return int(self._train_function.num_examples) if self._train_function else 0


def _what_was_read(logs: dict | None) -> dict:
    """Returns the logs if another callback has read them, and may have written into them."""
    return dict(logs) if isinstance(logs, LazyLogs) and logs.is_read else {}
