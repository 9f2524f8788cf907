"""The key that the tasks of a job share: only those that know it can speak as one of them.

Users call it the secret. It protects the rendezvous before the start. TensorFlow's own servers,
which start later at the same ports, ask nobody for it.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasdist.support.environment import SECRET, SECRET_FILE

_CALLER, _CALLED = "caller", "called"


def from_env() -> bytes | None:
    """Returns the key of this job; None without one.

    Raises:
        ValueError: It is empty, given twice, or its file cannot be read.
    """
    text, path = os.environ.get(SECRET), os.environ.get(SECRET_FILE)
    if text is not None and path is not None:
        raise ValueError(f"Give one of {SECRET} and {SECRET_FILE}, not both.")
    if path is not None:
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"The secret file cannot be read. Received: {SECRET_FILE}={path!r} "
                f"({error}). Every task needs it, with the same content."
            ) from error
    if text is not None and not text.strip():
        source = SECRET if path is None else f"the file {path!r} of {SECRET_FILE}"
        raise ValueError(f"The secret in {source} is empty. Leave it out, or write one.")
    return None if text is None else text.strip().encode()


class Seal:
    """Signs what one side of a connection sends, and checks what the other has signed.

    Each side asks for signatures of a number of its own, so that what was heard on one connection
    cannot be said again on another, nor back to who said it.

    Args:
        key: What both sides know.
        is_call: Whether this side has made the connection.
    """

    def __init__(self, key: bytes, *, is_call: bool):
        self._key = key
        self._roles = (_CALLER, _CALLED) if is_call else (_CALLED, _CALLER)
        self._number = secrets.token_hex(16)
        self._their_number: str | None = None
        self._num_sent = self._num_received = 0

    @property
    def is_ready(self) -> bool:
        """Whether the other side has sent its number."""
        return self._their_number is not None

    def question(self) -> dict[str, Any]:
        """Returns the first message of this side."""
        return {"kerasdist": "number", "number": self._number}

    def take(self, question: Mapping[str, Any]) -> None:
        """Takes the first message of the other side; a second one changes nothing."""
        self._their_number = self._their_number or str(question.get("number"))

    def sealed(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message with its signature; the other side has sent its number before."""
        text = json.dumps(message)
        sign = self._sign(self._roles[0], str(self._their_number), self._num_sent, text)
        self._num_sent += 1
        return {"kerasdist": "sealed", "text": text, "sign": sign}

    def opened(self, message: Mapping[str, Any]) -> str:
        """Returns the text of a message.

        Raises:
            ValueError: It was not signed with this key, for this place on this connection.
        """
        text = str(message.get("text"))
        expected = self._sign(self._roles[1], self._number, self._num_received, text)
        if not hmac.compare_digest(expected.encode(), str(message.get("sign")).encode()):
            raise ValueError
        self._num_received += 1
        return text

    def _sign(self, role: str, number: str, position: int, text: str) -> str:
        signed = f"{role} {number} {position} {text}".encode()
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest()
