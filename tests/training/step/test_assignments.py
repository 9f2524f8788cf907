"""What is said of assignments that are not the same on all replicas.

That they are found in programs is in test_rehearsal.py.
"""

import functools

from kerasdist.training.step import assignments


def test_what_is_not_the_same_is_told_with_how_many_more():
    weights, states = [("kernel", None), ("bias", None)], [("mean", None)]
    describe = functools.partial(assignments.describe_spreads, weights, states, num_replicas=2)

    assert describe([1e-5, 0.0, 0.0]) == []
    of_weights, of_state = describe([0.1, 0.2, 0.3])
    assert of_weights.startswith("What a step assigns to the trained weight 'kernel' and 1 more is")
    assert of_state.startswith("What a step assigns to the state 'mean' is not the same on the 2")
    assert describe([0.0, 0.0, 0.3]) == [of_state]
