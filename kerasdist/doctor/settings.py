"""Settings of a process that runs a program of the user for the doctor."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a program is run.

    Attributes:
        folder: Where to record.
        strategy: "none" for plain Keras, "one device" for ours, "deployment" for the one asked for.
        num_steps: Training steps after which the program is ended.
        num_clones: Replicas per worker, in place of the program's own; None keeps those.
        num_workers: Workers, in place of the program's own; None keeps those.
        is_alike: Whether all examples draw the same random numbers, and batch statistics are those
            of the global batch.
        is_rounded: Whether workers send gradients in 16 bits, where the program asks for that.
        is_launched: Whether this is a process of a launched cluster.
        truth: Folder of the recording whose initial weights are taken.
    """

    folder: str
    strategy: str
    num_steps: int
    num_clones: int | None = None
    num_workers: int | None = None
    is_alike: bool = False
    is_rounded: bool = True
    is_launched: bool = False
    truth: str | None = None
