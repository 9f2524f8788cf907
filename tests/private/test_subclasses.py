"""Outside of kerasdist/private/, no class of it uses a private name of one of Keras or TensorFlow.

In the source alone, which tests/test_architecture.py reads, these look like names of our own.
"""

import importlib
import inspect
import itertools
import re
from collections.abc import Iterator

from tests.test_architecture import LIBRARY, PRIVATE, ROOT

# How an optimizer of one's own finds what it keeps for a weight.
DOCUMENTED = {"_get_variable_index"}


def test_subclasses_use_no_private_name_of_their_bases():
    found = {f"{each.__module__}.{each.__name__}": names_of_bases(each) for each in our_classes()}

    assert "kerasdist.training.epochs.epoch_iterator.EpochIterator" in found
    assert {name: names for name, names in found.items() if names} == {}


def our_classes() -> Iterator[type]:
    for path in LIBRARY:
        has_classes = "\nclass " in path.read_text() and path.name != "__main__.py"
        if PRIVATE in path.parents or not has_classes:
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                yield value


def names_of_bases(our_class: type) -> set[str]:
    """Returns the private names in a class that are also in one of those it is made of."""
    names = private_names(our_class) - DOCUMENTED
    of_others = ("keras.", "tensorflow.")
    theirs = [each for each in our_class.__mro__ if each.__module__.startswith(of_others)]
    return names.intersection(itertools.chain.from_iterable(map(private_names, theirs)))


def private_names(any_class: type) -> set[str]:
    return set(re.findall(r"\b(?:self\.|def )(_[a-z]\w*)", inspect.getsource(any_class)))
