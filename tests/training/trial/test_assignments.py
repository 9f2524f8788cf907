"""What is said of assignments that are not the same on all replicas.

That they are found in programs is in test_fit.py.
"""

import keras

from kerasdist.training.trial import assignments


def describe(deviations, model):
    weights, states = [("kernel", None), ("bias", None)], [("mean", None)]
    return assignments.describe(model, weights, states, deviations, num_replicas=2)


def test_what_is_not_the_same_is_told_with_how_many_more():
    model, other = keras.Model(), keras.Model()

    assert describe([1e-5, 0.0, 0.0], model) == []
    of_weights, of_state = describe([0.1, 0.2, 0.3], model)
    assert of_weights.startswith("What a step assigns to the trained weight 'kernel' and 1 more is")
    assert of_state.startswith("What a step assigns to the state 'mean' is not the same on the 2")
    assert describe([0.0, 0.0, 0.3], other) == [of_state]


def test_what_was_told_is_no_news():
    model = keras.Model()
    describe([0.0, 0.0, 0.3], model)

    (of_weights,) = describe([0.1, 0.0, 0.3], model)
    assert "'kernel' is" in of_weights
    assert assignments.describe_news(model, ["bias"], ["mean"], 2) == []
    (of_state,) = assignments.describe_news(model, [], ["mean", "count"], 2)
    assert "'count' is" in of_state


def test_what_nobody_hears_is_news_afterwards():
    model = keras.Model()

    with assignments.nobody_told(model):
        assert len(describe([0.1, 0.0, 0.3], model)) == 2

    assert len(describe([0.1, 0.0, 0.3], model)) == 2
    with assignments.nobody_told(model):
        assert describe([0.1, 0.0, 0.3], model) == []
    assert describe([0.1, 0.0, 0.3], model) == []
