"""Meet the other tasks of the cluster before TensorFlow waits for them, for ever and deaf."""

from kerasdist.preflight.errors import ClusterStartError as ClusterStartError
from kerasdist.preflight.wait import wait_for_peers as wait_for_peers
