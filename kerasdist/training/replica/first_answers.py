"""Give the other replicas of a process what the first one has got.

answers = FirstAnswers(told, is_first=position == 0)    # `told` is one list for all replicas.
seed = answers.get(generator, generator.next)
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class FirstAnswers:
    """The answers that the first replica of this process has got, as one replica gets them.

    Args:
        told: A list that all replicas of a step have in common.
        is_first: Whether this replica is the one that asks.
    """

    def __init__(self, told: list, *, is_first: bool):
        self.is_first = is_first
        self._told, self._ahead = told, iter(told)

    @classmethod
    def of_the_first(cls) -> "FirstAnswers":
        """Returns those of a replica that is first, with nobody to tell them to."""
        return cls([], is_first=True)

    def get(self, source: Any, ask: Callable[[], Any]):
        """Returns what the first replica has got from a source, each of its answers once.

        A replica asks by itself where the first one has asked something else, or has got a tensor
        that is out of reach, as that of a condition.

        Args:
            source: What is asked, the same object on all replicas.
            ask: Asks it.
        """
        if self.is_first:
            answer = ask()
            self._told.append((source, answer))
            return answer
        known, answer = next(self._ahead, (None, None))
        is_told = known is source and all(map(_is_within_reach, tf.nest.flatten(answer)))
        return answer if is_told else ask()


def _is_within_reach(value: Any) -> bool:
    return not tf.is_symbolic_tensor(value) or value.graph is tf.compat.v1.get_default_graph()
