"""Answers at a port: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever restarts."""

import http.server
import socket
import threading
from http import HTTPStatus
from typing import Any, cast

from kerasdist.status.number import to_prometheus
from kerasdist.status.task_status import TaskStatus

# Who opens more at a time than a scraper and two probes, or is slower, is turned away.
_MOST_CONNECTIONS = 16
_SECS = 5.0
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"


def listen(address: tuple[str, int], status: TaskStatus) -> None:
    """Answers at an address until the process ends, in a thread that keeps it from nothing.

    Args:
        address: The host, "" for all interfaces, and the port.
        status: What is told.

    Raises:
        OSError: The port is taken or not allowed, or the host is none of this machine.
    """
    server = _Server(_open(*address), status)
    threading.Thread(target=server.serve_forever, name="kerasdist_status", daemon=True).start()


def _open(host: str, port: int) -> socket.socket:
    if not host:
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=is_dual)
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(place[:2], family=family)


class _Server(http.server.ThreadingHTTPServer):
    """A server of a socket that listens, with a limit of connections."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, status: TaskStatus):
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.status = status
        self._free = threading.Semaphore(_MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: who asks may be gone, or send anything."""


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _SECS  # Of each message of a client.
    server_version, sys_version = "kerasdist", ""

    def do_GET(self) -> None:  # The name is http.server's.
        code, kind, text = self._answer()
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _answer(self) -> tuple[HTTPStatus, str, str]:
        status = cast(_Server, self.server).status
        match self.path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, _METRICS, to_prometheus(status.numbers(), status.labels)
            case "/healthz":
                return _unless(status.describe_stuck())
            case "/readyz":
                return _unless(status.describe_not_ready())
        return HTTPStatus.NOT_FOUND, _TEXT, "There are /metrics, /healthz and /readyz.\n"

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: a probe comes every few seconds."""


def _unless(problem: str) -> tuple[HTTPStatus, str, str]:
    if problem:
        return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{problem}\n"
    return HTTPStatus.OK, _TEXT, "ok\n"
