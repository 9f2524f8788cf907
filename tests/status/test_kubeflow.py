"""Reports to a server of the form of Kubeflow Trainer's."""

import math
import re
import shutil
import ssl
import subprocess
import time

import pytest

from kerasdist.status import kubeflow
from kerasdist.status.kubeflow import ProgressReports, status_of
from kerasdist.status.number import Number
from kerasdist.status.task_status import TaskStatus
from tests.status.kubeflow_server import Server


def numbers(ratio=0.456):
    return [
        Number("step", 120, ""),
        Number("progress_ratio", ratio, ""),
        Number("remaining_seconds", 61.2, ""),
        Number("log", 0.123456789, "", {"name": "loss"}),
    ]


class Status(TaskStatus):
    """Has made so many steps of a hundred."""

    ratio = 0.0

    def numbers(self):
        self.ratio += 0.25
        return numbers(self.ratio)


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


@pytest.fixture
def server():
    with Server().serving() as server:
        yield server


def test_the_report_has_the_form_of_kubeflow():
    status = status_of(numbers())

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", status.pop("lastUpdatedTime"))
    assert status == {
        "progressPercentage": 45,
        "estimatedRemainingSeconds": 62,
        "metrics": [{"name": "step", "value": "120"}, {"name": "loss", "value": "0.123457"}],
    }


def test_what_is_unknown_is_left_out():
    assert set(status_of([Number("step", 1, "")])) == {"metrics", "lastUpdatedTime"}


def test_the_limits_of_kubeflow_are_kept():
    logs = [Number("log", math.nan, "", {"name": f"{'x' * 61}{i}"}) for i in range(1000)]
    status = status_of([*logs, Number("remaining_seconds", 1e12, "")])

    assert len(status["metrics"]) == 256
    assert all(len(each["name"]) <= 64 for each in status["metrics"])
    assert {each["value"] for each in status["metrics"]} == {"nan"}
    assert status["estimatedRemainingSeconds"] == 2**31 - 1


def test_the_token_is_read_each_time_and_the_last_report_comes_at_once(server, token):
    environ = {kubeflow.URL: server.url, kubeflow.TOKEN: str(token)}
    reports = ProgressReports(Status(), environ=environ, every_secs=60)
    reports.start()
    first, status = server.take()
    token.write_text("second\n")
    reports.finish()
    second, last = server.take()

    assert (first["Authorization"], second["Authorization"]) == ("Bearer first", "Bearer second")
    assert first["Content-Type"] == "application/json"
    assert (status["progressPercentage"], last["progressPercentage"]) == (25, 50)
    assert server.reports.empty()


def test_reports_come_at_intervals(server):
    reports = ProgressReports(Status(), environ={kubeflow.URL: server.url}, every_secs=0.3)
    began_at = time.monotonic()
    reports.start()
    shares = [server.take()[1]["progressPercentage"] for _ in range(3)]

    assert time.monotonic() - began_at >= 0.6
    assert shares == [25, 50, 75]
    reports.finish()


def test_a_server_that_does_not_answer_is_waited_for_some_seconds_at_most(
    server, monkeypatch, capsys
):
    monkeypatch.setattr(kubeflow, "_TIMEOUT_SECS", 0.1)
    server.is_open.clear()
    reports = ProgressReports(Status(), environ={kubeflow.URL: server.url}, every_secs=60)
    reports.start()
    server.take()
    began_at = time.monotonic()
    reports.finish()

    assert time.monotonic() - began_at < 10
    assert "KubeflowProgress cannot report to http://localhost" in capsys.readouterr().err


@pytest.mark.parametrize("code", [401, 500])
def test_a_report_that_is_refused_is_told_once(server, code, capsys):
    server.code = code
    reports = ProgressReports(Status(), environ={kubeflow.URL: server.url}, every_secs=60)
    reports.start()
    server.take()
    reports.finish()

    said = capsys.readouterr().err
    assert said.count("KubeflowProgress cannot report") == 1
    assert f"HTTP Error {code}" in said


@pytest.mark.parametrize("code", [302, 307, 308])
def test_the_token_goes_to_no_other_address(server, token, code):
    with Server().serving() as other:
        server.code, server.location = code, other.url
        environ = {kubeflow.URL: server.url, kubeflow.TOKEN: str(token)}
        reports = ProgressReports(Status(), environ=environ, every_secs=60)
        reports.start()
        reports.finish()

        assert other.reports.empty()


@pytest.mark.parametrize(
    "environ", [{kubeflow.URL: "no address"}, {kubeflow.TOKEN: "/absent/token"}]
)
def test_variables_that_cannot_work_fail_nothing(environ, capsys):
    environ = {kubeflow.URL: "http://localhost:1/status"} | environ
    reports = ProgressReports(Status(), environ=environ)
    reports._try()

    assert "Training goes on" in capsys.readouterr().err


@pytest.fixture
def certificate(tmp_path):
    """The paths of a certificate that nobody has signed, and of its key."""
    paths = tmp_path / "ca.crt", tmp_path / "key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-out", paths[0], "-keyout", paths[1]),
        ],
        check=True,
        capture_output=True,
    )
    return paths


@pytest.mark.skipif(not shutil.which("openssl"), reason="not installed: openssl")
def test_the_certificate_of_kubeflow_is_trusted_and_no_other_is(certificate, token, capsys):
    ca_cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca_cert, key)
    with Server(context).serving() as server:
        environ = {kubeflow.URL: server.url, kubeflow.TOKEN: str(token)}
        ProgressReports(Status(), environ=environ)._try()
        assert server.reports.empty()
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err

        ProgressReports(Status(), environ=environ | {kubeflow.CA_CERT: str(ca_cert)})._try()
        assert server.take()[0]["Authorization"] == "Bearer first"
