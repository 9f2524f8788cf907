"""Send gradients in 16 bits, where `make_strategy(allreduce_dtype=...)` asks for it.

What replicas compute and what they do with the sum stays float32: only the message is narrow.

The largest float16 is 65,504, and numbers below 6e-8 are 0 in it. So each gradient is multiplied by
a power of two that its replicas agree on beforehand: whatever they add up then stays below 32,768,
and numbers vanish only if they are a 10^12th of the largest one. A bfloat16 has the range of a
float32, and an eighth of the precision of a float16.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.training.hooks.gradient_values import map_values, values_of

# The layout of a float32: 23 bits of fraction, then 8 of an exponent, which is 127 for 1.0.
_FRACTION_BITS = 23
_EXPONENT_OF_ONE = 127
_EXPONENT_OF_INFINITY = 255
# 2^126: its inverse is the smallest float32 that no device takes for 0.
_LARGEST_EXPONENT = _EXPONENT_OF_ONE + 126
_EXPONENT_OF_LIMIT = _EXPONENT_OF_ONE + 15  # 32,768.


def sum_up(add_up: Callable[[list], list], gradients: list, others: list, dtype: tf.DType) -> list:
    """Returns the sums over the replicas of gradients, and then those of others.

    Args:
        add_up: Returns tensors and IndexedSlices summed over the replicas, of each dtype in one
            message.
        gradients: Tensors and IndexedSlices, of which those of float32 travel as `dtype`. Slices
            do so in float16 alone: TensorFlow cannot gather those of bfloat16.
        others: Tensors that travel as they are.
        dtype: float16 or bfloat16.
    """
    are_narrow = [_is_narrowed(each, dtype) for each in gradients]
    pairs = list(zip(gradients, are_narrow, strict=True))
    narrow = [each for each, is_narrow in pairs if is_narrow]
    wide = [each for each, is_narrow in pairs if not is_narrow] + others
    if not narrow:
        return add_up(wide)
    if dtype == tf.bfloat16:
        sent = [_cast(each, dtype) for each in narrow]
        sums = add_up([*sent, *wide])
        narrow_sums = [_cast(each, tf.float32) for each in sums[: len(sent)]]
        wide_sums = sums[len(sent) :]
    else:
        largest = tf.stack([_largest(each) for each in narrow])
        *wide_sums, bounds = add_up([*wide, largest])
        narrow_sums = _sum_scaled(add_up, narrow, bounds, dtype)
    first, rest = iter(narrow_sums), iter(wide_sums)
    return [next(first if is_narrow else rest) for is_narrow in are_narrow] + list(rest)


def _is_narrowed(gradient: Any, dtype: tf.DType) -> bool:
    is_sendable = dtype == tf.float16 or not isinstance(gradient, tf.IndexedSlices)
    return gradient.dtype == tf.float32 and is_sendable


def _sum_scaled(add_up: Callable, gradients: list, bounds: tf.Tensor, dtype: tf.DType) -> list:
    """Returns the sums of gradients that are multiplied for the message.

    Args:
        add_up: As above.
        gradients: To be summed.
        bounds: float32 [gradients], which no number exceeds that comes of adding up.
        dtype: That of the message.
    """
    scales, inverses = (tf.unstack(each, num=len(gradients)) for each in _powers_of_two(bounds))
    sent = [
        _cast(_times(gradient, scale), dtype)
        for gradient, scale in zip(gradients, scales, strict=True)
    ]
    return [
        _times(_cast(total, tf.float32), inverse)
        for total, inverse in zip(add_up(sent), inverses, strict=True)
    ]


def _powers_of_two(bounds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns powers of two that bring numbers below 32,768, and their inverses; 1 for infinity.

    They are made of their bits, so that no two machines compute other ones. What is not finite
    stays so, and is for those to see who look at gradients.
    """
    exponents = tf.bitwise.right_shift(tf.bitcast(bounds, tf.int32), _FRACTION_BITS)
    # A number is below the power of two that follows that of its exponent.
    wanted = _EXPONENT_OF_ONE + _EXPONENT_OF_LIMIT - (exponents + 1)
    finite = tf.minimum(wanted, _LARGEST_EXPONENT)
    is_finite = (exponents >= 0) & (exponents < _EXPONENT_OF_INFINITY)  # Below 0: -NaN.
    scales = tf.where(is_finite, finite, _EXPONENT_OF_ONE)
    return _of_exponent(scales), _of_exponent(2 * _EXPONENT_OF_ONE - scales)


def _of_exponent(exponents: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.bitwise.left_shift(exponents, _FRACTION_BITS), tf.float32)


def _largest(gradient: Any) -> tf.Tensor:
    """Returns the largest absolute value: float32 scalar, 0 where there is none."""
    values = values_of(gradient)
    return tf.maximum(tf.maximum(tf.reduce_max(values), -tf.reduce_min(values)), 0.0)


def _times(gradient: Any, factor: tf.Tensor) -> Any:
    return map_values(gradient, lambda values: values * factor)


def _cast(gradient: Any, dtype: tf.DType) -> Any:
    return map_values(gradient, lambda values: tf.cast(values, dtype))
