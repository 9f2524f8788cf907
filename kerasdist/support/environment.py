"""The variables of the environment that are kerasdist's own; docs/cluster_details.md has all.

`launch` sets the first of them for its tasks; the user sets the others.
"""

RUN_ID = "KERASDIST_RUN_ID"  # The same in all tasks and restarts of a launch.
WORKERS = "KERASDIST_WORKERS"  # The range of an elastic launch, such as "1:4"; or empty.
RESTART_COUNT = "KERASDIST_RESTART_COUNT"  # How often the cluster was started again.
NUM_CLONES = "KERASDIST_NUM_CLONES"  # Replicas of each worker.
# Workers that an update of synchronous ones does without; empty or unset for asynchronous ones.
NUM_BACKUP_WORKERS = "KERASDIST_NUM_BACKUP_WORKERS"
NUM_TASKS = "KERASDIST_NUM_TASKS"  # All tasks of the launch, also those outside of the cluster.
NOTE = "KERASDIST_NOTE"  # The path of a file; see `launch_note`.
LAUNCH_FOLDER = "KERASDIST_LAUNCH_FOLDER"  # The private folder of the launch.
TERMINAL = "KERASDIST_TERMINAL"  # The file whose last line `launch` shows in a terminal.
ADDRESS = "KERASDIST_ADDRESS"  # "host:port" where the process of rank 0 listens.
RANK = "KERASDIST_RANK"  # Which of the processes this one is, from 0.
NUM_PROCESSES = "KERASDIST_NUM_PROCESSES"  # How many there are.
NUM_PS = "KERASDIST_NUM_PS"  # How many of them are parameter servers: the last ranks.
HOST = "KERASDIST_HOST"  # The host under which the others reach this process.
PORT = "KERASDIST_PORT"  # The port at which TensorFlow listens in this process.
STATUS_PORT = "KERASDIST_STATUS_PORT"  # "port" or "host:port" where a task tells its state.
STATUS_FILE = "KERASDIST_STATUS_FILE"  # The path of a file into which it does.
SECRET = "KERASDIST_SECRET"  # What all tasks of the job know; see `preflight/shared_key.py`.
SECRET_FILE = "KERASDIST_SECRET_FILE"  # The path of a file that holds it.
