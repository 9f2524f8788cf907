"""Processes that find their cluster in their variables; run by itself, as TensorFlow is not needed.

python -m tests.deploy.meeting < environments.json      # a list of variables, one set for each
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Mapping

from kerasdist.cluster import Cluster


def join(environ: Mapping[str, str]) -> dict:
    """Returns the task and the jobs of a process with these variables, or its error."""
    os.environ.update(environ)
    try:
        cluster = Cluster.from_env(timeout_secs=20)
    except (ValueError, RuntimeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"task": str(cluster.task), "jobs": {job: [*of] for job, of in cluster.jobs.items()}}


if __name__ == "__main__":
    environments = json.load(sys.stdin)
    # Each waits for the others, so that none gets a second one.
    with multiprocessing.get_context("fork").Pool(len(environments)) as pool:
        json.dump(pool.map(join, environments, chunksize=1), sys.stdout)
