"""Fixtures and marks of all tests."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kerasdist.support import memory
from tests import strategies

# A shell ignores it in what it starts in the background, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Likewise of one that nohup started. A handler is not inherited, and this one ignores them, too.
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def logical_cpus(request):
    """Lets the first strategy make its logical CPUs before any test starts TensorFlow.

    The tests beside this file do so themselves where they need it, so that one of them alone is
    quick. Those of the launcher and of the state need none.
    """
    here = Path(__file__).parent
    without = {here, here / "deploy", here / "launcher", here / "status", here / "support"}
    if any(item.path.parent not in without for item in request.session.items):
        strategies.get("one device")


@pytest.fixture(autouse=True)
def summaries_are_written():
    """Ends what a TensorBoard of Keras leaves behind when an error interrupts it: when to write."""
    tensorflow = sys.modules.get("tensorflow")
    with tensorflow.summary.record_if(True) if tensorflow else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def the_job_is_forgotten(monkeypatch):
    """Lets no test see the cluster that another one joined in this process, nor its state."""
    monkeypatch.setattr(memory.PROCESS, "cluster", None)
    monkeypatch.setattr(memory.PROCESS, "status", None)


@pytest.fixture(autouse=True, scope="module")
def lean_processes(request):
    """Makes the start of our processes cheap: see `tests/lean`.

    Keras imports packages wherever it finds them, which is a quarter of a start. The application
    uses these packages; tests of what the pages say give a path of their own.
    """
    here = Path(__file__).parent
    if request.path.is_relative_to(here / "models"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(here / "lean"), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


@pytest.fixture(autouse=True, scope="module")
def kept_objects_are_left_alone():
    """Lets garbage be looked for among what is new: TensorFlow keeps the graphs of a whole run."""
    yield
    gc.collect()
    gc.freeze()


def pytest_configure():
    """Looks for garbage less often: tracing makes objects by the million, and few are garbage."""
    gc.set_threshold(50_000, 20, 50)
    # Where it is set, as in many containers, every process would compile kerasdist anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


_WHOLE_FOLDERS = ("cluster", "libraries", "programs", "schedulers")


@pytest.fixture
def strategy(request):
    """The strategy of the deployment that `tests.strategies.each_strategy` names."""
    return strategies.get(request.param)


def pytest_collection_modifyitems(items):
    """Marks the tests of whole folders, and begins with the files that take longest.

    Otherwise one worker would be left with such a file at the end, and the other with nothing.
    """
    here = Path(__file__).parent
    for item in items:
        if any(item.path.is_relative_to(here / name) for name in _WHOLE_FOLDERS):
            item.add_marker(pytest.mark.processes)
    take_long = {item.path for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: item.path not in take_long)


@pytest.fixture(autouse=True)
def unmarked_tests_start_no_python(request, monkeypatch):
    """Keeps `make test-quick` quick: it leaves out the tests that are marked."""
    if request.node.get_closest_marker("processes"):
        return
    start = subprocess.Popen.__init__

    def check(process, args, *others, **options):
        program = args if isinstance(args, str) else args[0]
        # Libraries start others: matplotlib asks for fonts where it has no cache.
        if Path(program).name.startswith("python"):
            raise AssertionError("This test starts a process. Mark it: `@pytest.mark.processes`.")
        start(process, args, *others, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", check)
