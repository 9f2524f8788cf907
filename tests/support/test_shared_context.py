"""A context of several threads is entered by the first and left by the last one."""

import contextlib

from kerasdist.support.shared_context import SharedContext


def test_the_first_enters_and_the_last_leaves_in_whatever_order():
    noted = []

    @contextlib.contextmanager
    def noting():
        noted.append("entered")
        yield
        noted.append("left")

    shared = SharedContext(noting)
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(shared)
    second.enter_context(shared)
    first.close()
    assert noted == ["entered"]
    second.close()
    with shared:
        pass

    assert noted == ["entered", "left"] * 2
