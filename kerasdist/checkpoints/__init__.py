"""Checkpoints: what a training that was interrupted needs to go on as if it had not been."""

from kerasdist.checkpoints.folder import CorruptCheckpointError as CorruptCheckpointError
from kerasdist.checkpoints.folder import Folder as Folder
from kerasdist.checkpoints.folder import Saved as Saved
from kerasdist.checkpoints.writer import Writer as Writer
