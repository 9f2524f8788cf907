"""What the environment says: the processes of the job, and which of them this one is.

TensorFlow answers some mistakes in TF_CONFIG by waiting for ever, an address listed twice for one.
This package reads TF_CONFIG, Slurm's variables or addresses given by hand, without TensorFlow, and
says at once what is wrong.

    cluster = Cluster.from_env()
    print(f"{cluster.task}, {cluster.num_workers} workers, writes files: {cluster.is_chief}")
"""

from kerasdist.cluster.cluster import Cluster as Cluster
from kerasdist.cluster.task import Task as Task
