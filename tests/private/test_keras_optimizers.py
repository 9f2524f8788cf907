"""Every private name of Keras' optimizers that is used does what it did."""

import keras
import tensorflow as tf

from kerasdist.private import keras_optimizers


def test_numbers_of_an_optimizer_are_its_scalars_that_are_no_slots():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 9)
    optimizer, scheduled = keras.optimizers.Adam(), keras.optimizers.Adam(schedule)

    found = [
        [number.name for number in keras_optimizers.numbers_of(each)]
        for each in (optimizer, scheduled)
    ]

    assert found == [["iteration", "learning_rate"], ["iteration"]]


def test_optimizers_inside_others_are_found_to_any_depth():
    first, second = keras.optimizers.Adam(), keras.optimizers.SGD()
    scaled = keras.optimizers.LossScaleOptimizer(first)

    assert keras_optimizers.nested(scaled) == [scaled, first]
    assert keras_optimizers.updating(scaled) == [first]
    assert not keras_optimizers.divides(first)

    if not hasattr(keras.optimizers, "MultiOptimizer"):  # Keras 3.15 has the first.
        return
    multi = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(first, {"a": second}))
    scaled = keras.optimizers.LossScaleOptimizer(multi)
    assert keras_optimizers.nested(scaled) == [scaled, multi, second, first]
    assert keras_optimizers.updating(scaled) == keras_optimizers.updating(multi) == [second, first]
    assert keras_optimizers.divides(multi)


def test_what_an_optimizer_makes_is_placed_beside_the_weight_that_it_has_come_to():
    weights = [keras.Variable(tf.zeros([2, 3]), name=name) for name in ("one", "other")]
    beside = {}

    def creator(next_creator, **kwargs):
        place = kwargs.pop("colocate_with", None)
        variable = next_creator(**kwargs)
        beside[str(variable.shape.as_list()), place is not None and place.name] = variable
        return variable

    with tf.variable_creator_scope(creator):
        keras_optimizers.build(keras.optimizers.Adafactor(), weights)

    rows_and_columns = [("[2]", weight.value.name) for weight in weights]
    rows_and_columns += [("[3]", weight.value.name) for weight in weights]
    assert set(rows_and_columns) <= set(beside)
    assert not any(shape in ("[2]", "[3]") and not place for shape, place in beside)
