"""Callbacks for `fit`: some change the update of the weights, others save or watch it."""

from kerasdist.callbacks.checkpoint import Checkpoint as Checkpoint
from kerasdist.callbacks.every import Every as Every
from kerasdist.callbacks.first_step_proof import FirstStepProof as FirstStepProof
from kerasdist.callbacks.gradient_accumulation import GradientAccumulation as GradientAccumulation
from kerasdist.callbacks.gradient_clipping import GradientClipping as GradientClipping
from kerasdist.callbacks.gradient_multipliers import GradientMultipliers as GradientMultipliers
from kerasdist.callbacks.kubeflow_progress import KubeflowProgress as KubeflowProgress
from kerasdist.callbacks.loss_averages import LossAverages as LossAverages
from kerasdist.callbacks.moving_average import MovingAverage as MovingAverage
from kerasdist.callbacks.on_chief import OnChief as OnChief
from kerasdist.callbacks.profiler_trace import ProfilerTrace as ProfilerTrace
from kerasdist.callbacks.stop_on_non_finite import StopOnNonFinite as StopOnNonFinite
from kerasdist.callbacks.summaries import Summaries as Summaries
from kerasdist.callbacks.throughput import Throughput as Throughput
from kerasdist.callbacks.trainable_scopes import TrainableScopes as TrainableScopes
from kerasdist.training.hooks.update_callback import UpdateCallback as UpdateCallback
