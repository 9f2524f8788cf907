"""A server that takes reports as the one of Kubeflow Trainer does."""

import contextlib
import http.server
import json
import queue
import threading


class Server:
    """Takes reports, and answers as a test says.

    Args:
        context: For HTTPS; None for HTTP.

    Attributes:
        url: Where it is.
        reports: What has come: the headers, and the body.
        code: With what it answers.
        location: To where it sends the caller, if the code is one that does.
        is_open: While it is not set, no answer is given.
    """

    def __init__(self, context=None):
        self.reports, self.code, self.location = queue.Queue(), 200, ""
        self.is_open = threading.Event()
        self.is_open.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.reports.put((dict(self.headers), json.loads(body)))
                outer.is_open.wait(60)
                self.send_response(outer.code)
                self.send_header("Location", outer.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, format, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if context else "http"
        self.url = f"{scheme}://localhost:{self._server.server_port}/status"

    @contextlib.contextmanager
    def serving(self):
        """Serves while what is inside runs."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self.is_open.set()
            self._server.shutdown()
            self._server.server_close()

    def take(self):
        """Returns the headers and the trainerStatus of the next report."""
        headers, body = self.reports.get(timeout=30)
        assert set(body) == {"trainerStatus"}
        return headers, body["trainerStatus"]
