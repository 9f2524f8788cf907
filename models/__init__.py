"""The image application: train and evaluate classifiers, built on kerasdist's public names.

Its commands:

    python -m models.recipes.lenet_digits        # the demonstration
    python -m models.train --help
    python -m models.evaluate --help
"""

import os

# Hides what TensorFlow logs for information, also between the lines about a training; warnings and
# errors stay. TensorFlow reads it when it is imported, so no command could set it later.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
