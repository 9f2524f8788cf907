"""What `fit`, `evaluate` and `predict` run under our strategies."""
