"""Where a training runs: its strategy, its workers, the call of `fit`, and what they agree on."""
