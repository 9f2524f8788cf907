"""The promise "the same weights", as a table of cases that anybody can run."""

from kerasdist.parity.cases import CASES as CASES
from kerasdist.parity.cases import Case as Case
from kerasdist.parity.outcome import Outcome as Outcome
from kerasdist.parity.outcome import difference as difference
from kerasdist.parity.outcome import has_same_steps as has_same_steps
from kerasdist.parity.outcome import train as train
