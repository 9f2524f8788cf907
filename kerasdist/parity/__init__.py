"""The promise "the same weights", as a table of cases that anybody can run."""

from kerasdist.parity.cases import CASES as CASES
from kerasdist.parity.cases import Case as Case
from kerasdist.parity.comparison import Outcome as Outcome
from kerasdist.parity.comparison import difference as difference
from kerasdist.parity.comparison import has_same_steps as has_same_steps
from kerasdist.parity.comparison import train as train
