"""The exit codes of the contract in docs/clusters.md that kerasdist itself gives or knows."""

FAILED = 1  # As Python gives for an exception.
USAGE = 2
TIMED_OUT = 124  # As timeout(1) has it.
SIGNALED = 128  # Plus the signal.
PEER_FAILED = 138
