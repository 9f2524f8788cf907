"""Lets two runs of the same program give the same bits.

Several threads add up a sum in an order of their own, so that the last bit of a loss differs
between two runs of plain Keras already. TensorFlow reads this when it starts, after the tests are
collected.
"""

import os

os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
