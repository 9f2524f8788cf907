"""Sums up where the time of a trace went, as text."""

import collections
from collections.abc import Iterable, Sequence

from kerasdist.support.text import counted, in_columns
from kerasdist.trace.spans import Span

_COLLECTIVES = ("Collective", "AllReduce", "AllGather", "Nccl", "Broadcast", "ReduceScatter")
_INPUT = ("IteratorGetNext", "PrefetchConsume", "tf_data_iterator_get_next")


def report(spans: list[Span], *, num_top: int = 15, kind: str | None = None) -> str:
    """Returns tables: each device's share, the operations, collectives, and waits for input.

    Args:
        spans: Those of a trace.
        num_top: Rows of a table.
        kind: A kind of operation, such as "Const"; only its counts by device are then returned.
    """
    if kind is not None:
        return _counts(spans, kind)
    if not spans:
        return "The trace is empty."
    window = max(span.start_us + span.us for span in spans) - min(span.start_us for span in spans)
    return "\n\n".join(
        [
            f"{counted(len(spans), 'span')} in {window / 1e3:.2f} ms",
            _devices(spans, window),
            _operations(spans, num_top),
            _group("Messages between replicas", _named(spans, _COLLECTIVES), window),
            _group("Waits for input", _named(spans, _INPUT), window),
            _kinds(spans, num_top),
        ]
    )


def _devices(spans: list[Span], window: float) -> str:
    busy = collections.defaultdict(list)
    for span in spans:
        if span.kind:
            busy[span.place].append((span.start_us, span.start_us + span.us))
    rows = [
        (place, f"{us / 1e3:.3f}", _share(us, window))
        for place, us in sorted((place, _covered(pairs)) for place, pairs in busy.items())
    ]
    return _table(("device", "busy ms", "of the time"), rows)


def _operations(spans: list[Span], num_top: int) -> str:
    total: dict = collections.defaultdict(lambda: [0.0, 0])
    for span, us in _self_times(spans):
        if span.kind:
            each = total[span.place, span.kind]
            each[0] += us
            each[1] += 1
    top = sorted(total.items(), key=lambda item: -item[1][0])[:num_top]
    rows = [
        (kind, place, f"{us / 1e3:.3f}", f"{count:,}", f"{us / count:.1f}")
        for (place, kind), (us, count) in top
    ]
    return _table(("operation", "device", "ms", "count", "us each"), rows)


def _kinds(spans: list[Span], num_top: int) -> str:
    counts = collections.Counter((span.kind, span.place) for span in spans if span.kind)
    rows = [(kind, place, f"{count:,}") for (kind, place), count in counts.most_common(num_top)]
    return _table(("kind", "device", "operations"), rows)


def _counts(spans: list[Span], kind: str) -> str:
    counts = collections.Counter(span.place for span in spans if span.kind == kind)
    if not counts:
        return f"No operation of kind {kind} ran."
    rows = [(place, f"{count:,}") for place, count in sorted(counts.items())]
    return _table(("device", f"{kind} operations"), rows)


def _group(title: str, spans: list[Span], window: float) -> str:
    us = _covered((span.start_us, span.start_us + span.us) for span in spans)
    number = counted(len(spans), "span")
    return f"{title}: {us / 1e3:.3f} ms in {number}, {_share(us, window)} of the time"


def _share(us: float, window: float) -> str:
    return f"{us / window:.1%}" if window else "0.0%"  # All spans may be of 0 us.


def _named(spans: list[Span], words: Sequence[str]):
    return [span for span in spans if any(word in span.name or word in span.line for word in words)]


def _self_times(spans: list[Span]):
    """Yields each span with its time without that of the spans inside it, on its line."""
    lines = collections.defaultdict(list)
    for span in spans:
        lines[span.device, span.line].append(span)
    for line in lines.values():
        yield from _self_times_of_line(sorted(line, key=lambda span: (span.start_us, -span.us)))


def _self_times_of_line(spans: list[Span]):
    stack: list = []  # [span, end, time of what is inside]
    for span in spans:
        while stack and stack[-1][1] <= span.start_us:
            yield _ended(stack)
        if stack:
            stack[-1][2] += span.us
        stack.append([span, span.start_us + span.us, 0.0])
    while stack:
        yield _ended(stack)


def _ended(stack: list):
    span, _, inside = stack.pop()
    return span, max(span.us - inside, 0.0)


def _covered(pairs: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(pairs):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total


def _table(titles: tuple, rows: list[tuple]) -> str:
    rows = [titles, *rows]
    numbers = [column for column, cell in enumerate(rows[-1]) if _is_number(cell)]
    return "\n".join(in_columns(rows, right=numbers))


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("%", "").isdigit()
