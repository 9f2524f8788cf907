"""Meet the other tasks of the cluster first: TensorFlow would wait for them forever."""

from kerasdist.messages.errors import ClusterStartError as ClusterStartError
from kerasdist.preflight.wait import wait_for_peers as wait_for_peers
