"""The table of tolerances: how much may differ from one device, each with its reason.

The trial before the first step, `FirstStepProof`, the doctor and the parity table all ask whether a
deployment gives what one device gives. They take their numbers from here, and `is_rounding` decides
for all of them.
"""

import keras
import numpy as np
import tensorflow as tf

# Gradients in a trial, as a part of their norm.
# Above what rounding makes of most nets. What differs by more, up to `ROUGH`, is looked at twice.
GRADIENT = 2e-5
# The same of float16 and bfloat16, where a net cannot be tried in float32.
GRADIENT_OF_16_BITS = 5e-2
# So few examples as one for each replica round more, and so do accelerators, which multiply with
# fewer bits. Differences above it are no rounding, whatever the weights.
ROUGH = 1e-3
# A gradient that is smaller, as a part of all gradients of an update, may be rounding alone, as
# that of a bias before a layer that subtracts the mean.
SMALL_GRADIENT = 1e-2
# Shares are not equal, so that a sum over the examples is a mean times the number of replicas but
# for this.
SUM = 0.2

# What rounding does to a program is seen with inputs and weights that differ in the last bits of a
# float32: a deep net with few examples multiplies what rounding does to its inputs.
LAST_BITS = 2.0**-22
# How many times what comes of it is rounding, too.
TIMES_TWIN = 4.0

# A small difference is computed with weights that are perturbed, too: each of them by a thousandth,
# far above the bits in which accelerators multiply.
PERTURBATION = 1e-3
# Rounding then gives another difference, and what the program computes one that is the same but for
# this part of its norm. Two perturbations, as a single number is alike by accident once in 15
# times.
ALIKE = 0.2
PERTURBATIONS = (1, 2)

# Results of a step: what differs by less may be rounding of a sum that is about 0.
RESULT_NEAR_ZERO = 1e-6

# What a step assigns by itself: its standard deviation over the replicas, of the root mean square;
# above rounding.
DEVIATION = 2e-5
# A weight that is moved and moved back, as for a perturbed gradient, differs by this part of its
# norm.
MOVED_BACK = 2.0**-20

# Weights, states and learning rates of replicas after many steps, relative: far above the rounding
# differences between kinds of machines. Below the second one, numbers are about 0.
DRIFT = 1e-4
DRIFT_NEAR_ZERO = 1e-6

# Weights, metrics and logs after the first steps, by the dtype that a step computes in: the largest
# absolute difference.
TRAINED = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}


def of_gradients(model: keras.Model, *, are_few: bool = False) -> float:
    """Returns how much of the norm of a gradient may be rounding, by the dtype of `model`.

    Args:
        model: A model of one of our strategies.
        are_few: Whether each replica has a single example; what bends then differs by much more.
    """
    is_short = model.compute_dtype in ("float16", "bfloat16")
    return max(GRADIENT_OF_16_BITS if is_short else GRADIENT, ROUGH if are_few else 0.0)


def of_results(model: keras.Model, *, are_few: bool = False) -> float:
    """Returns how much of the largest result may be rounding, which nobody looks at twice.

    Accelerators multiply with fewer bits, and in other ways for other numbers of examples.

    Args:
        model: See `of_gradients`.
        are_few: See `of_gradients`.
    """
    devices = model.distribute_strategy.extended.worker_devices
    is_on_cpus = all(tf.DeviceSpec.from_string(each).device_type == "CPU" for each in devices)
    return of_gradients(model, are_few=are_few or not is_on_cpus)


def is_rounding(
    difference: float,
    tolerance: float,
    *,
    scale: float = 1.0,
    of_twin: float = 0.0,
    near_zero: float = 0.0,
) -> bool:
    """Whether two numbers or norms differ by no more than rounding explains; not where one is NaN.

    Args:
        difference: By how much they differ.
        tolerance: One of this file, a part of `scale`.
        scale: How large the numbers are.
        of_twin: By how much one device differs where its inputs differ in their last bits.
        near_zero: What is rounding whatever the scale.
    """
    limits = (tolerance * scale, TIMES_TWIN * of_twin, near_zero)
    return any(bool(difference <= limit) for limit in limits)


def is_computed(difference: np.ndarray, perturbed: list[np.ndarray]) -> bool:
    """Whether two results differ by what is computed, and not by rounding.

    Args:
        difference: Between the two.
        perturbed: The same, each with weights that are perturbed.
    """
    allowed = ALIKE * np.linalg.norm(difference)
    return all(np.linalg.norm(difference - each) <= allowed for each in perturbed)


def absolute_differences(truth: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Returns the absolute difference of each element of two arrays of one shape.

    It is 0 where both are NaN or the same infinity, and infinite where only one is.
    """
    with np.errstate(invalid="ignore"):  # Infinite ones.
        found = np.abs(truth - ours)
    is_same = (truth == ours) | (np.isnan(truth) & np.isnan(ours))
    return np.where(is_same, 0.0, np.where(np.isnan(found), np.inf, found))
