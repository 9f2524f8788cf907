"""Which variables a traced step sets by its batch."""

import pytest
import tensorflow as tf

from kerasdist.training.replica.dependence import Dependence


def copy(batch, variable, other):
    variable.assign(tf.reduce_sum(batch))


def count(batch, variable, other):
    variable.assign_add(1.0)


def follow(batch, variable, other):
    other.assign(tf.reduce_sum(batch))
    variable.assign(0.9 * variable + 0.1 * other)


def decide(batch, variable, other):
    tf.cond(tf.reduce_sum(batch) > 0, lambda: variable.assign_add(1.0), lambda: variable.value())


def scale(batch, variable, other):
    variable.assign_add(2.0 * tf.reduce_mean(tf.tanh(batch)))


@pytest.mark.parametrize(
    ("assign", "is_found"),
    [(copy, True), (count, False), (follow, False), (decide, True), (scale, True)],
)
def test_what_is_computed_with_the_batch_is_found(assign, is_found):
    variable, other = tf.Variable(0.0), tf.Variable(0.0)
    found = []

    @tf.function(autograph=False)
    def step(batch):
        dependence = Dependence({"x": batch})
        assign(batch, variable, other)
        found.extend(dependence.among([variable]))

    step(tf.ones([3]))

    assert [each is variable for each in found] == [True] * is_found


def look_at(look):
    """Traces a step that calls look(dependence, total, batch); all replicas have the total."""

    @tf.function(autograph=False)
    def step(batch):
        dependence = Dependence(batch)
        total = tf.reduce_sum(batch)
        dependence.end_at([total])
        look(dependence, total, batch)

    step(tf.ones([3]))


def test_it_ends_where_all_replicas_have_the_same():
    mine, all_of_them = tf.Variable(0.0), tf.Variable(0.0)
    found = []

    def look(dependence, total, batch):
        all_of_them.assign(total / 2)
        mine.assign(tf.reduce_max(batch))
        found.extend(dependence.among([mine, all_of_them]))

    look_at(look)

    assert [each is mine for each in found] == [True]


def test_in_loops_too():
    variable = tf.Variable(0.0)
    found = []

    @tf.function(autograph=False)
    def steps(batch):
        def body(step):
            row = batch[step]
            dependence = Dependence(row)
            variable.assign_add(row)
            found.extend(dependence.among([variable]))
            return step + 1

        tf.while_loop(lambda step: step < 3, body, [0])

    steps(tf.ones([3]))

    assert found
    assert float(tf.convert_to_tensor(variable)) == 3.0


def test_eager_steps_say_nothing():
    variable = tf.Variable(0.0)
    dependence = Dependence(tf.ones([3]))

    assert dependence.among([variable]) == []


# What is the same on all replicas, with and without what variables hold.
COMMON = {
    "of a sum": (lambda total, batch, state: 2 * tf.tanh(total), True, True),
    "of the batch": (lambda total, batch, state: total + batch[0], False, False),
    "of a variable": (lambda total, batch, state: total * state, False, True),
    "a random number": (lambda total, batch, state: total + tf.random.normal([]), False, False),
    "in a condition": (
        lambda total, batch, state: tf.cond(total > 0, lambda: total, lambda: -total),
        True,
        True,
    ),
}


@pytest.mark.parametrize(("compute", "without", "with_reads"), COMMON.values(), ids=COMMON)
def test_what_all_replicas_have_in_common(compute, without, with_reads):
    state = tf.Variable(3.0)
    found = []

    def look(dependence, total, batch):
        value = compute(total, batch, state)
        found.extend(dependence.is_common(value, may_read=each) for each in (False, True))

    look_at(look)

    assert found == [without, with_reads]


@pytest.mark.parametrize("is_set", [False, True])
def test_what_is_read_is_common_until_the_batch_sets_it(is_set):
    state = tf.Variable(3.0)
    found = []

    def look(dependence, total, batch):
        if is_set:
            state.assign(batch[0])
        found.append(dependence.is_common_by_now(2 * tf.convert_to_tensor(state)))

    look_at(look)

    assert found == [not is_set]


@pytest.mark.parametrize(("is_of_sum", "expected"), [(True, False), (False, True)])
def test_a_condition_that_each_replica_decides_for_itself(is_of_sum, expected):
    graphs, found = [], []

    def note():
        graphs.append(tf.compat.v1.get_default_graph())
        return 1.0

    def look(dependence, total, batch):
        decides = total if is_of_sum else batch[0]
        tf.cond(decides > 0, lambda: tf.cond(total > 1, note, lambda: 0.0), lambda: 0.0)
        graph = tf.compat.v1.get_default_graph()
        found.extend(dependence.has_own_condition(each, graph) for each in [graph, *graphs])

    look_at(look)

    assert found == [False, expected]
