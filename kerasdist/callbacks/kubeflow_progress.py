"""Shows the progress of a training as that of its TrainJob."""

import os
from typing import Any

import keras

from kerasdist.lifetime import process_end
from kerasdist.status import kubeflow, task_status
from kerasdist.training.context import peers
from kerasdist.training.hooks import scope_checks
from kerasdist.training.report import log_lines


class KubeflowProgress(keras.callbacks.Callback):
    """Reports the progress to Kubeflow Trainer, which shows it in `status.trainerStatus`.

    The chief reports every 5 s: which percentage of the steps of the `fit` that runs is made, how
    many seconds the others take at the pace so far, the step, the epoch, the examples per second,
    the step of the newest checkpoint, and the logs. The last report comes when the process ends.
    It is a thread that does so: a server that is slow, gone, or refuses a report costs one line on
    stderr, and no step waits for it.

    Kubeflow Trainer 2.2 and later sets KUBEFLOW_TRAINER_SERVER_URL, _CA_CERT and _TOKEN in the pods
    of a TrainJob if its feature gate TrainJobStatus is on. Elsewhere nothing is reported, and a
    line says so.

    Raises:
        RuntimeError: When `fit` begins: the model was made outside the scope of a strategy.

    Example:
        ```python
        model.fit(dataset, epochs=10, callbacks=[KubeflowProgress()])
        ```
    """

    def __init__(self):
        super().__init__()
        if os.environ.get(kubeflow.URL):
            task_status.of_process().add_reader()

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        scope_checks.check_has_strategy(model, type(self).__name__)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        strategy, status = self.model.distribute_strategy, task_status.of_process()
        if not peers.is_chief(strategy) or status.tells_kubeflow:
            return
        if not os.environ.get(kubeflow.URL):
            log_lines.say(strategy, f"KubeflowProgress reports nothing: {kubeflow.URL} is not set.")
            return
        status.tells_kubeflow = True
        reports = kubeflow.ProgressReports(status)
        reports.start()
        process_end.at_end(reports.finish)
