"""What starting a launch costs."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_launcher_loads_no_tensorflow():
    script = """if True:
        import sys
        from kerasdist.__main__ import main
        assert main(["launch", "--workers=2", "--log-dir=logs", "--", "true"]) == 0
        print(len(sys.modules), *sys.modules)
    """

    printed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )

    number, *modules = printed.stdout.splitlines()[-1].split()
    assert not {"tensorflow", "keras", "numpy", "cloudpickle"} & set(modules)
    assert int(number) < 350
