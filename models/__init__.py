"""The image application: train and evaluate classifiers, built on kerasdist's public names.

Its commands:

    python -m models.recipes.lenet_digits        # the demonstration
    python -m models.train --help
    python -m models.evaluate --help
"""
