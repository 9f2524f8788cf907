"""One file per strategy, the choice between them, and `make_strategy`."""

from kerasdist.strategies.choice import Choice as Choice
from kerasdist.strategies.choice import choose as choose
from kerasdist.strategies.make_strategy import make_strategy as make_strategy
