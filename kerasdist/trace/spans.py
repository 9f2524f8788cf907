"""Reads and writes traces: spans of time, on the lines of a device."""

import collections
import dataclasses
import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kerasdist.support.usage_error import UsageError

# An operation of a graph: its name, and its kind without the prefix of oneDNN's, `_MklMatMul`.
_OPERATION = re.compile(r"^(?P<name>[^:]+):_?(?:MklNative|Mkl)?(?P<kind>[A-Z]\w*)$")
_REPLICA = re.compile(r"(?:^|/)(replica_\d+)/")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that took time.

    Attributes:
        device: Where: the name of a host or an accelerator in the trace.
        line: The thread or stream.
        name: What.
        start_us: Microseconds, from the start of the trace.
        us: How many microseconds it took.
    """

    device: str
    line: str
    name: str
    start_us: float
    us: float

    @property
    def kind(self) -> str | None:
        """The kind of operation, such as "MatMul"; None if it is not one of a graph."""
        found = _OPERATION.match(self.name)
        return found["kind"] if found else None

    @property
    def place(self) -> str:
        """The device and, for an operation on several replicas of a host, the replica."""
        found = _REPLICA.search(self.name)
        return f"{self.device} {found[1]}" if found else self.device


def read(path: Path) -> list[Span]:
    """Returns the spans of a trace.

    Args:
        path: `tf_trace-<step>.json`, also with .gz, or `<task>.xplane.pb`; or a folder of such
            files, of which the newest is read.

    Raises:
        UsageError: It is not such a file, or there is none.
    """
    path = newest(path)
    try:
        content = path.read_bytes()
        if path.name.endswith(".xplane.pb"):
            return list(of_profile(content))
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return list(_of_chrome(json.loads(content)))
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None
    except KeyError as error:
        raise UsageError(f"{path} is not a trace: there is no {error} in it.") from error
    except RecursionError:
        raise UsageError(f"{path} is not a trace: it is nested too deeply.") from None
    except (OSError, EOFError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a trace: {error}.") from error


def newest(path: Path) -> Path:
    """Returns the newest trace in a folder; what is no folder as it is.

    Raises:
        UsageError: There is none.
    """
    if not path.is_dir():
        return path
    found = [*path.rglob("tf_trace-*.json*"), *path.rglob("*.xplane.pb")]
    if not found:
        raise UsageError(f"There is no trace in {path}: no tf_trace-*.json, no *.xplane.pb.")
    return max(found, key=_age)


def of_profile(content: bytes) -> Iterator[Span]:
    """Yields the spans of a profile as TensorFlow writes it (XSpace)."""
    from kerasdist.private import runtime

    space = runtime.parsed_profile(content)
    planes = [plane for plane in space.planes if any(line.events for line in plane.lines)]
    starts = [line.timestamp_ns for plane in planes for line in plane.lines if line.events]
    origin = min(starts, default=0)
    for plane in planes:
        names = {key: value.name for key, value in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                yield Span(
                    device=plane.name,
                    line=line.display_name or line.name,
                    name=names.get(event.metadata_id, ""),
                    start_us=(line.timestamp_ns - origin) / 1e3 + event.offset_ps / 1e6,
                    us=event.duration_ps / 1e6,
                )


def as_chrome(spans: list[Span]) -> dict:
    """Returns spans in the trace event format of Chrome, which Perfetto opens."""
    processes = {device: number for number, device in enumerate(_devices(spans), start=1)}
    threads: dict = collections.defaultdict(dict)
    events = []
    for span in spans:
        lines = threads[span.device]
        events.append(
            {
                "ph": "X",
                "pid": processes[span.device],
                "tid": lines.setdefault(span.line, len(lines) + 1),
                "name": span.name,
                "ts": round(span.start_us, 3),
                "dur": round(span.us, 3),
            }
        )
    names = [_name("process_name", pid, 0, device) for device, pid in processes.items()]
    names += [
        _name("thread_name", processes[device], tid, line)
        for device, lines in threads.items()
        for line, tid in lines.items()
    ]
    return {"displayTimeUnit": "ms", "traceEvents": names + events}


def _name(what: str, pid: int, tid: int, name: str):
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _devices(spans: list[Span]):
    return dict.fromkeys(span.device for span in spans)


def _of_chrome(trace: Any) -> Iterator[Span]:
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    named: dict = {}
    for event in events:
        if event.get("ph") == "M" and event["name"] in ("process_name", "thread_name"):
            named[event["name"], event["pid"], event.get("tid", 0)] = event["args"]["name"]
    open_spans: dict = collections.defaultdict(list)  # Begun on a line, and not ended yet.
    for event in events:
        if event.get("ph") not in ("X", "B", "E"):
            continue
        pid, tid = event["pid"], event.get("tid", 0)
        if event["ph"] == "B":
            open_spans[pid, tid].append(event)
            continue
        if event["ph"] == "X":
            begin, us = event, _finite(event.get("dur", 0))
        elif open_spans[pid, tid]:
            begin = open_spans[pid, tid].pop()
            us = _finite(event["ts"]) - _finite(begin["ts"])
        else:  # Its begin was not recorded.
            continue
        yield Span(
            device=named.get(("process_name", pid, 0), str(pid)),
            line=named.get(("thread_name", pid, tid), str(tid)),
            name=str(begin["name"]),
            start_us=_finite(begin["ts"]),
            us=us,
        )


def _finite(microsecs: Any) -> float:
    if not math.isfinite(float(microsecs)):
        raise ValueError(f"an event has the time {microsecs}")
    return float(microsecs)


def _age(path: Path):
    return path.stat().st_mtime, path.name
