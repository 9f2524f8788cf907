"""Whether there is a network to download from, known in seconds."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

# Where tensorflow-datasets looks first, and a name that should be known anywhere.
_HOSTS = ("storage.googleapis.com", "www.tensorflow.org")
_TIMEOUT_SECS = 5.0
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")


def is_offline() -> bool:
    """Return whether no name can be resolved, and no proxy could do so instead."""
    if any(os.environ.get(each) or os.environ.get(each.upper()) for each in _PROXIES):
        return False
    pool = ThreadPoolExecutor(len(_HOSTS))
    try:
        futures = [pool.submit(socket.getaddrinfo, host, 443) for host in _HOSTS]
        return all(_has_failed(future) for future in futures)
    finally:
        pool.shutdown(wait=False)


def _has_failed(future) -> bool:
    try:
        future.result(_TIMEOUT_SECS)
    except (OSError, TimeoutError):
        return True
    return False
