"""The outcome of one run of a step, on one device or on the replicas."""

import dataclasses

import numpy as np

# Arrays of a structure, by their paths in it.
Arrays = dict[tuple, np.ndarray]
# For each update in a step: paths of the variables, and their gradients.
Updates = list[tuple[list[str], list]]
# Stands for the path of a variable where a program adds up gradients by itself.
CUSTOM_SUM = "what an `all_reduce` returns"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a run, of one device or of the replicas.

    Attributes:
        updates: What it would have updated, by gradients over all replicas.
        asks_for_number: Whether the step asks for the number of replicas; known of one device.
        losses: The user's compiled losses that were computed, each with its labels and predictions;
            of one device.
        counted: Names of attributes in which the user's own has counted or collected something.
        logs: The numbers that it returns, as float64: means over the replicas.
        shapes: The shapes of these on one replica.
        results: Which of these are results of metrics, by their paths.
        counts: What the variables of metrics hold that add up, by the metric's id.
        deviations: How different what is assigned to each variable is on the replicas: the standard
            deviation as a fraction of the root mean square.
    """

    updates: Updates = dataclasses.field(default_factory=list)
    asks_for_number: bool = False
    losses: list = dataclasses.field(default_factory=list)
    counted: list[str] = dataclasses.field(default_factory=list)
    logs: Arrays = dataclasses.field(default_factory=dict)
    shapes: dict[tuple, tuple] = dataclasses.field(default_factory=dict)
    results: frozenset[tuple] = frozenset()
    counts: dict[int, list[np.ndarray]] = dataclasses.field(default_factory=dict)
    deviations: list[float] = dataclasses.field(default_factory=list)
