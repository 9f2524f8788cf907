"""Lets a synchronous worker fail as soon as its launcher says that a peer is lost.

A worker whose collective waits for one that is killed may learn it from TensorFlow only when the
heartbeats have been missing for long enough. The launcher of both sees it at once.
"""

import os
import threading
import time

from kerasdist.lifetime import peer_failure
from kerasdist.private import runtime
from kerasdist.support import environment, launch_note

_POLL_SECS = 0.25


def listen() -> None:
    """Begins to listen to the launcher of this process, if there is one."""
    if environment.NOTE in os.environ:
        threading.Thread(target=_listen, name="kerasdist_told_loss", daemon=True).start()


def _listen() -> None:
    while not (cause := launch_note.told_loss()):
        time.sleep(_POLL_SECS)
    # In the main thread, so that `fit` ends as after any loss: what is being written is completed.
    runtime.abort_collectives(str(peer_failure.lost(cause).message))
