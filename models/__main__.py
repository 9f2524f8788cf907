"""The command `kerasdist-models`: one program of this application by its name.

    kerasdist-models train --help
    kerasdist-models recipes.lenet_digits

In a clone each is a module as well: `python -m models.train --help`.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from .programs import words
from .usage_error import did_you_mean, printable

# What is told of each by `--help`.
PROGRAMS = {
    "train": "train an image classifier",
    "evaluate": "measure a trained classifier",
    "predict": "classify images",
    "export": "write a model for a serving process",
    "convert": "write a dataset in another format",
    "migrate": "translate a command line of TF-Slim or of the Inception trainers",
    "recipes.lenet_digits": "LeNet on scikit-learn's handwritten digits, in a minute",
    "recipes.cifarnet_cifar10": "CifarNet on CIFAR-10",
    "recipes.inception_v3_imagenet": "Inception v3 on ImageNet, as published",
    "recipes.vgg_16_fine_tuning": "VGG-16 with a new head",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program that the first argument names, and returns its exit code."""
    if argv is None:
        argv = sys.argv[1:]
        # As `python -m` does: the user's own nets and datasets are modules there.
        sys.path.insert(0, os.getcwd())
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        print("\n".join(_help()))
        return 0
    if name not in PROGRAMS:
        hint = did_you_mean(name, PROGRAMS)
        print(printable(f"error: There is no program {name!r}{hint}"), file=sys.stderr)
        print("\n".join(_help()), file=sys.stderr)
        return 2
    return importlib.import_module(f".{name}", __package__).main(rest)


def _help() -> list[str]:
    width = max(map(len, PROGRAMS))
    rows = [f"  {name:<{width}}  {told}" for name, told in PROGRAMS.items()]
    usage = " ".join(words("PROGRAM"))
    return [f"usage: {usage} [FLAGS], of which --help tells", "", *rows]


if __name__ == "__main__":
    sys.exit(main())
