"""Traces of the profiler: read, written for Perfetto, and summed up as tables."""

from kerasdist.trace.spans import Span as Span
from kerasdist.trace.spans import newest as newest
from kerasdist.trace.spans import read as read
