"""A history is kept whatever callbacks write into the logs."""

import datetime
import json

import keras
import ml_dtypes
import numpy as np

from kerasdist.checkpoints import histories


def test_logs_that_are_no_numbers_are_kept_as_text():
    history = keras.callbacks.History()
    moment = datetime.datetime(2024, 1, 2)
    history.epoch = [0]
    history.history = {
        **{"loss": [np.float32(0.5), ml_dtypes.bfloat16(2)], "none": [None], "when": [moment]},
        **{"keys": [{(0, 1): {"f1": np.float64(0.5)}}], "complex": [1j], "set": [{1}]},
        **{"bytes": [b"x"], "step": [keras.Variable(3, dtype="int64")], "rows": [np.eye(2)]},
    }

    kept = json.loads(json.dumps(histories.read(history)))

    assert kept["history"] == {
        **{"loss": [0.5, 2.0], "none": [None], "when": ["2024-01-02 00:00:00"]},
        **{"keys": [{"(0, 1)": {"f1": 0.5}}], "complex": ["1j"], "set": ["{1}"]},
        **{"bytes": ["b'x'"], "step": [3], "rows": [[[1.0, 0.0], [0.0, 1.0]]]},
    }
