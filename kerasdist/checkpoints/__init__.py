"""Checkpoints: what an interrupted training needs to go on as if nothing had happened."""

from kerasdist.checkpoints.folder import Folder as Folder
from kerasdist.checkpoints.preemption import Preemption as Preemption
from kerasdist.checkpoints.record_file import CorruptCheckpointError as CorruptCheckpointError
from kerasdist.checkpoints.resumption import Resumption as Resumption
from kerasdist.checkpoints.saved import Saved as Saved
from kerasdist.checkpoints.snapshots import Snapshots as Snapshots
from kerasdist.checkpoints.writer import Writer as Writer
