"""What runs beside the program says what became of it."""

import threading

import pytest

from kerasdist.support.background import in_background


@pytest.mark.parametrize("error", [OSError("no route"), UnicodeError("a..b"), SystemExit(3)])
def test_whoever_waits_for_what_runs_in_the_background_hears_of_its_error(error):
    def fail():
        raise error

    assert in_background(fail).exception(timeout=10) is error


def test_what_runs_in_the_background_keeps_no_process_from_ending():
    thread = in_background(threading.current_thread).result(timeout=10)

    assert thread.daemon
