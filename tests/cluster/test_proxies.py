"""Tasks connect to each other directly, also where a proxy leads to the internet."""

import os

import pytest

from kerasdist import testing
from kerasdist.cluster import proxies
from tests.cases import exhaustive


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(proxies.NO_PROXY, "")  # So that it is put back.


def test_hosts_are_added_to_those_that_are_known(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")

    proxies.bypass(["b:1", "a:2222", "[::1]:2222", "a:2223"])

    assert os.environ[proxies.NO_PROXY] == "localhost,::1,a,b"


def test_without_a_proxy_nothing_is_set():
    proxies.bypass(["a:2222"])

    assert not os.environ[proxies.NO_PROXY]


def join():
    import kerasdist

    return kerasdist.make_strategy(start_timeout_secs=60).num_replicas_in_sync


@pytest.mark.processes
@pytest.mark.parametrize("num_ps", [1, *exhaustive(0)])
def test_workers_start_beside_a_proxy_that_nobody_can_reach(monkeypatch, num_ps):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    outcomes = testing.run_cluster(join, num_workers=2, num_ps=num_ps, timeout_secs=120)

    assert [each.exit_code for each in outcomes] == [0] * len(outcomes)
