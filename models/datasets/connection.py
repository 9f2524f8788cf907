"""Whether there is a network connection for downloads, found out within seconds."""

import os
import queue
import socket
import threading

# Where tensorflow-datasets looks first, and a name that is known everywhere.
_HOSTS = ("storage.googleapis.com", "www.tensorflow.org")
_TIMEOUT_SECS = 5.0
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")


def is_offline() -> bool:
    """Returns whether no name can be resolved, and no proxy could do so instead."""
    if any(os.environ.get(each) or os.environ.get(each.upper()) for each in _PROXIES):
        return False
    found = queue.SimpleQueue()
    for host in _HOSTS:
        # Daemons: a look-up that hangs must not delay the end of the process.
        threading.Thread(target=_look_up, args=(host, found), daemon=True).start()
    try:
        return not any(found.get(timeout=_TIMEOUT_SECS) for _ in _HOSTS)
    except queue.Empty:
        return True


def _look_up(host: str, found: queue.SimpleQueue) -> None:
    try:
        found.put(bool(socket.getaddrinfo(host, 443)))
    except OSError:
        found.put(False)
