"""Reports the progress of a training to Kubeflow Trainer, which shows it as that of the TrainJob.

Its controller gives the pods an address, a certificate and a token, and takes a report every few
seconds: https://www.kubeflow.org/docs/components/trainer, "TrainJob progress".
"""

import datetime
import http.client
import json
import math
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerasdist.status.number import Number, to_json
from kerasdist.status.task_status import TaskStatus
from kerasdist.support.terminal import announce

URL = "KUBEFLOW_TRAINER_SERVER_URL"  # Where the reports of this TrainJob go.
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"  # The path of the certificate to trust there.
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # The path of a token, which is replaced now and then.

_EVERY_SECS = 5.0  # What Kubeflow asks for, to spare its server.
_TIMEOUT_SECS = 5.0
# Its limits.
_MOST_METRICS, _MOST_CHARACTERS, _MOST_SECS = 256, 64, 2**31 - 1
_METRICS = ("step", "epoch", "examples_per_second", "checkpoint_step")


class ProgressReports:
    """Reports every few seconds in a thread, which neither fails nor delays what it reports.

    Args:
        status: What is reported.
        environ: The variables that Kubeflow sets.
        every_secs: Seconds between two reports; the last one comes at once.
    """

    def __init__(
        self,
        status: TaskStatus,
        *,
        environ: Mapping[str, str] = os.environ,
        every_secs: float = _EVERY_SECS,
    ):
        self._status, self._environ, self._every_secs = status, environ, every_secs
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="kerasdist_kubeflow", daemon=True)

    def start(self) -> None:
        """Reports from now on."""
        self._thread.start()

    def finish(self) -> None:
        """Reports a last time, and waits some seconds for that."""
        self._is_over.set()
        self._thread.join(2 * _TIMEOUT_SECS)

    def _go_on(self) -> None:
        while not self._is_over.is_set():
            self._try()
            self._is_over.wait(self._every_secs)
        self._try()

    def _try(self) -> None:
        url = self._environ[URL]
        try:
            _post(url, status_of(self._status.numbers()), self._environ)
        # A server may answer anything, and a certificate may be none.
        except (OSError, ValueError, http.client.HTTPException) as error:
            announce(
                f"KubeflowProgress cannot report to {url}: {error}. Training goes on, and later "
                "reports are tried."
            )


def status_of(numbers: Sequence[Number]) -> dict[str, Any]:
    """Returns the trainerStatus of Kubeflow: what is unknown is left out."""
    known = to_json(numbers)
    status: dict[str, Any] = {
        "metrics": _metrics_of(numbers),
        "lastUpdatedTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if "progress_ratio" in known:
        # 100 only when all steps are made.
        status["progressPercentage"] = math.floor(100 * known["progress_ratio"])
    if "remaining_seconds" in known:
        status["estimatedRemainingSeconds"] = min(math.ceil(known["remaining_seconds"]), _MOST_SECS)
    return status


def _metrics_of(numbers: Sequence[Number]) -> list[dict[str, str]]:
    found = {each.name: each.value for each in numbers if each.name in _METRICS}
    found |= {each.labels["name"]: each.value for each in numbers if each.name == "log"}
    metrics = [
        {"name": name, "value": str(value if isinstance(value, int) else float(f"{value:.6g}"))}
        for name, value in found.items()
        if 0 < len(name) <= _MOST_CHARACTERS
    ]
    return metrics[:_MOST_METRICS]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Gives the token to no other address."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def _post(url: str, status: dict[str, Any], environ: Mapping[str, str]) -> None:
    headers = {"Content-Type": "application/json"}
    if path := environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {Path(path).read_text().strip()}"
    context = ssl.create_default_context(cafile=environ.get(CA_CERT) or None)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),  # The server is in the cluster.
        urllib.request.HTTPSHandler(context=context),
        _NoRedirects(),
    )
    body = json.dumps({"trainerStatus": status}).encode()
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    with opener.open(request, timeout=_TIMEOUT_SECS) as answer:
        answer.read(1000)
