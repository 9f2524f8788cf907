"""The error of a cluster that cannot start."""


class ClusterStartError(RuntimeError):
    """The tasks of the cluster did not come together, or do not fit together.

    Raised before TensorFlow's servers start, with the same message on every task that could be
    reached.

    Example:
        ```python
        try:
            strategy = kerasdist.make_strategy()
        except ClusterStartError as error:
            sys.exit(f"No cluster: {error}")
        ```
    """
