"""The names of our variables are the same wherever they are written down."""

from pathlib import Path

import pytest

from kerasdist.processes import guard
from kerasdist.support import environment

NAMES = {name: value for name, value in vars(environment).items() if name.isupper()}
DETAILS = Path(__file__).parents[2] / "docs/cluster_details.md"


def test_the_guard_knows_it_by_the_same_name():
    assert guard.LAUNCH_FOLDER == environment.LAUNCH_FOLDER


@pytest.mark.parametrize(("name", "value"), NAMES.items())
def test_each_is_named_after_its_constant_and_documented(name, value):
    assert value == f"KERASDIST_{name}"
    assert f"`{value}`" in DETAILS.read_text()
