#!/usr/bin/env bash
# A job that is put into the queue again when it was stopped, or has lost a worker.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1  # One worker for each node: each of its GPUs is a replica.
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@60     # Before the time is over: a step, and a checkpoint.
#SBATCH --requeue
#SBATCH --open-mode=append   # The log goes on after a restart.
#SBATCH --output=train-%j.log
set -u

max_restarts=20
folder=${FOLDER:-$PWD/runs/$SLURM_JOB_ID}  # All nodes must see it.
export CHECKPOINTS="$folder/checkpoints"
export KERASDIST_RUN_ID=$SLURM_JOB_ID  # The same after a restart, as for a tracker.
export KERASDIST_RESTART_COUNT=${SLURM_RESTART_COUNT:-0}

# `srun` ends with the highest code of its tasks: the 138 of the others would hide the 1 of a worker
# that has an error. So that worker leaves a file.
mkdir -p "$folder"
export final="$folder/final"
rm -f "$final"
worker='
  trap : TERM  # Python answers it, and the shell waits for its exit code.
  "$@"
  code=$?
  case $code in 1 | 2 | 126 | 127) echo "$code" > "$final" ;; esac
  exit "$code"
'
srun --kill-on-bad-exit=0 bash -c "$worker" worker python "${PROGRAM:-train.py}"
code=$?

if [ -e "$final" ]; then
  exit "$(cat "$final")"  # An error of the program would come back.
fi
case $code in
  137 | 138 | 143)
    if [ "$KERASDIST_RESTART_COUNT" -lt "$max_restarts" ]; then
      echo "Ended with $code: put into the queue again."
      scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit "$code"
