"""The places of workers: those that were lost are away for a while."""

import types

from kerasdist.launcher.places import Places

HERE = types.SimpleNamespace(num_places=3)
THERE = types.SimpleNamespace(num_places=1)


def places_of(*machines, fewest=1, most=4, away_secs=600.0):
    return Places(lambda: machines, fewest=fewest, most=most, away_secs=away_secs)


def test_machines_get_workers_in_order_as_many_as_they_have_places():
    assert places_of(HERE, THERE).assigned(4) == [(HERE, 3), (THERE, 1)]
    assert places_of(HERE, THERE).assigned(2) == [(HERE, 2)]
    assert places_of(THERE, HERE, most=3).count() == 3


def test_a_lost_place_is_away_for_a_time():
    places = places_of(HERE, THERE)
    places.lose(HERE)
    places.lose(THERE)

    assert places.assigned(4) == [(HERE, 2)]
    assert 599 < (places.secs_until_next() or 0) <= 600

    at_once = places_of(HERE, away_secs=0.0)
    at_once.lose(HERE)
    assert at_once.count() == 3
    assert at_once.secs_until_next() is None


def test_as_many_come_back_at_once_as_the_job_needs():
    places = places_of(HERE, fewest=2)
    for _ in range(3):
        places.lose(HERE)

    assert places.count() == 0
    places.take_back()
    assert places.count() == 2


def test_a_machine_that_is_gone_takes_its_places_along():
    gone = types.SimpleNamespace(num_places=1)
    places = places_of(HERE, fewest=4)
    places.lose(gone)
    places.take_back()

    assert places.count() == 3
    assert places.secs_until_next() is None
