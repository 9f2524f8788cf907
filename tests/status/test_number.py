"""The text that Prometheus scrapes, and the lines of JSON."""

import json
import math

from kerasdist.status.number import Number, to_json, to_prometheus

NUMBERS = [
    Number("step", 120, "Updates."),
    Number("log", 0.5, "The logs.", {"name": "loss"}),
    Number("steps_total", 7, 'Has a "quote",\na line and a \\.'),
    Number("log", math.nan, "The logs.", {"name": 'a "b"\\\n'}),
]


def test_numbers_of_one_name_are_together_with_their_kind_and_all_labels():
    assert to_prometheus(NUMBERS, {"task_type": "worker"}).splitlines() == [
        "# HELP kerasdist_step Updates.",
        "# TYPE kerasdist_step gauge",
        'kerasdist_step{task_type="worker"} 120',
        "# HELP kerasdist_log The logs.",
        "# TYPE kerasdist_log gauge",
        'kerasdist_log{task_type="worker",name="loss"} 0.5',
        'kerasdist_log{task_type="worker",name="a \\"b\\"\\\\\\n"} NaN',
        '# HELP kerasdist_steps_total Has a "quote",\\na line and a \\\\.',
        "# TYPE kerasdist_steps_total counter",
        'kerasdist_steps_total{task_type="worker"} 7',
    ]


def test_infinity_has_its_sign():
    numbers = [Number("a", math.inf, ""), Number("b", -math.inf, "")]

    text = to_prometheus(numbers, {})
    assert "kerasdist_a{} +Inf\n" in text
    assert "kerasdist_b{} -Inf\n" in text


def test_json_has_no_nan_and_nests_by_the_label():
    found = to_json(NUMBERS)

    assert found == {"step": 120, "log": {"loss": 0.5, 'a "b"\\\n': None}, "steps_total": 7}
    assert "NaN" not in json.dumps(found)
