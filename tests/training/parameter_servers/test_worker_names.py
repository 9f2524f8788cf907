"""Names of what workers keep for the chief."""

from kerasdist.training.parameter_servers.worker_names import unique_name


def test_no_two_names_are_the_same():
    assert len({unique_name() for _ in range(100)}) == 100
