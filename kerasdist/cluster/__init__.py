"""What the environment says: the processes of the job, and which of them this one is.

After some mistakes in TF_CONFIG, such as an address that is listed twice, TensorFlow waits forever.
This package reads TF_CONFIG, what launchers tell, or addresses given by hand, without TensorFlow,
and reports at once what is wrong.

    cluster = Cluster.from_env()
    print(f"{cluster.task}, {cluster.num_workers} workers, writes files: {cluster.is_chief}")
"""

from kerasdist.cluster.cluster import Cluster as Cluster
from kerasdist.cluster.task import Task as Task
