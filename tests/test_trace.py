"""`python -m kerasdist trace`: reading traces, and the tables."""

import gzip
import json
import os

import pytest

from kerasdist import trace
from kerasdist.__main__ import main
from kerasdist.trace import Span, spans
from kerasdist.trace.report import report

# On one line a loop from 0 to 100 us with two products in it; a wait and a message on another.
SPANS = [
    Span(device="/host:CPU", line="a", name="loop:While", start_us=0.0, us=100.0),
    Span(device="/host:CPU", line="a", name="net/MatMul:_MklMatMul", start_us=10.0, us=30.0),
    Span(device="/host:CPU", line="a", name="replica_1/b:MatMul", start_us=50.0, us=20.0),
    Span(device="/host:CPU", line="b", name="IteratorGetNext:IteratorGetNext", start_us=100, us=50),
    Span(device="/host:CPU", line="b", name="sum:CollectiveReduceV2", start_us=150.0, us=50.0),
    Span(device="/host:CPU", line="b", name="ThreadpoolListener::Record", start_us=160.0, us=0.0),
]


@pytest.fixture
def chrome(tmp_path):
    path = tmp_path / "tf_trace-3.json"
    path.write_text(json.dumps(spans.as_chrome(SPANS)))
    return path


def test_what_is_written_for_perfetto_is_read_again(chrome, tmp_path):
    packed = tmp_path / "tf_trace-4.json.gz"
    packed.write_bytes(gzip.compress(chrome.read_bytes()))

    assert trace.read(chrome) == trace.read(packed) == trace.read(tmp_path) == SPANS


def test_the_time_of_an_operation_is_without_that_of_those_inside_it():
    rows = [line.split() for line in report(SPANS).splitlines()]

    assert ["While", "/host:CPU", "0.050", "1", "50.0"] in rows
    assert ["MatMul", "/host:CPU", "0.030", "1", "30.0"] in rows


def test_devices_messages_and_waits():
    text = report(SPANS)

    assert "6 spans in 0.20 ms" in text
    assert "/host:CPU replica_1    0.020        10.0%" in text
    assert "Messages between replicas: 0.050 ms in 1 span, 25.0% of the time" in text
    assert "Waits for input: 0.050 ms in 1 span, 25.0% of the time" in text


def test_a_trace_of_no_length_has_no_shares():
    text = report(SPANS[-1:])

    assert "1 span in 0.00 ms" in text
    assert "Waits for input: 0.000 ms in 0 spans, 0.0% of the time" in text


def test_how_many_operations_of_a_kind_ran_where(chrome, capsys):
    assert main(["trace", str(chrome), "--count", "MatMul"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "device               MatMul operations",
        "/host:CPU                            1",
        "/host:CPU replica_1                  1",
    ]


def test_of_several_traces_the_newest_is_taken_and_named(chrome, tmp_path, capsys):
    newer = chrome.rename(tmp_path / "tf_trace-9.json")
    chrome.write_text(newer.read_text())
    os.utime(newer, (2e9, 2e9))

    assert main(["trace", str(tmp_path)]) == 0

    assert capsys.readouterr().out.startswith(f"{newer}, the newest trace in {tmp_path}:\n\n")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"text", "Expecting value"),
        (b"[3]", "'int' object"),
        (b"{}", "there is no 'traceEvents' in it."),
        (b"[" * 100_000, "it is nested too deeply."),
        (b'[{"ph": "X", "pid": 1, "name": "a", "ts": 0, "dur": NaN}]', "an event has the time nan"),
    ],
)
def test_what_is_no_trace_is_one_line(content, reason, tmp_path, capsys):
    path = tmp_path / "tf_trace-1.json"
    path.write_bytes(content)

    assert main(["trace", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path} is not a trace: {reason}")


def test_a_damaged_profile_is_one_line(tmp_path, capsys):
    path = tmp_path / "worker-0.xplane.pb"
    path.write_bytes(bytes(range(255, 0, -1)))

    assert main(["trace", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path} is not a trace: it cannot be parsed")


def test_begins_and_ends_of_other_programs_are_spans(tmp_path):
    events = [("E", 0), ("B", 10, "outer"), ("B", 20, 7), ("E", 50), ("E", 60), ("B", 70, "cut")]
    keys = ("ph", "ts", "name")
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps([{"pid": 1, **dict(zip(keys, event, strict=False))} for event in events])
    )

    assert [(each.name, each.start_us, each.us) for each in trace.read(path)] == [
        ("7", 20.0, 30.0),
        ("outer", 10.0, 50.0),
    ]


def test_what_is_not_there_is_one_line(tmp_path, capsys):
    assert main(["trace", str(tmp_path / "no.json")]) == 2
    assert main(["trace", str(tmp_path)]) == 2
    assert main(["trace", str(tmp_path), "--top", "0"]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"error: There is no file {tmp_path / 'no.json'}."
    assert lines[1].startswith(f"error: There is no trace in {tmp_path}")
    assert lines[2] == "error: `--top` must be at least 1. Received: --top=0."
