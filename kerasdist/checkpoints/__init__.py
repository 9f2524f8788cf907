"""Checkpoints: what an interrupted training needs to go on as if nothing had happened."""

from kerasdist.checkpoints.folder import CorruptCheckpointError as CorruptCheckpointError
from kerasdist.checkpoints.folder import Folder as Folder
from kerasdist.checkpoints.folder import Saved as Saved
from kerasdist.checkpoints.preemption import Preemption as Preemption
from kerasdist.checkpoints.resumption import Resumption as Resumption
from kerasdist.checkpoints.saving import Saving as Saving
from kerasdist.checkpoints.writer import Writer as Writer
