"""Recognizes TensorFlow's server: in HTTP/2, the side that is called greets at once."""

import socket

from kerasdist.messages.addresses import connect, describe_problem

_HEAD_BYTES = 9
NO_ANSWER = "no answer, it is halted or cut off"


def is_greeting(data: bytes) -> bool:
    """Returns whether data begins as gRPC's does: a frame of settings, for no stream."""
    return data[:2] == b"\0\0" and data[3:_HEAD_BYTES] == b"\x04\0\0\0\0\0"


def find_problem(address: str) -> str:
    """Returns in a few words why no server of TensorFlow answers at an address; "" if one does.

    A server whose process is halted does not answer.
    """
    try:
        with connect(address) as caller:
            greeting = caller.recv(_HEAD_BYTES, socket.MSG_WAITALL)
    except TimeoutError:
        return NO_ANSWER
    except (OSError, UnicodeError) as error:
        return describe_problem(error)
    return "" if is_greeting(greeting) else "something other than TensorFlow answers there"
