"""Whether the clusters of the tests have a network of their own here."""

import functools

import pytest

from kerasdist.processes.guard import ISOLATED, Guard


@functools.cache
def network() -> str:
    """Returns "isolated", or why the tasks share the network of the machine."""
    with Guard(isolate=True) as guard:
        return guard.network


isolated_only = pytest.mark.skipif(network() != ISOLATED, reason=network())
