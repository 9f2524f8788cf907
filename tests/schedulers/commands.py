"""The commands of docs/clusters.md that start a job by other launchers: the tests run them."""

SRUN = "srun --ntasks 2 python train.py"
SRUN_WITH_PS = "KERASDIST_NUM_PS=1 srun --ntasks 3 python train.py"
SBATCH = "sbatch --nodes 1 --ntasks-per-node 2 deploy/slurm.sh"
MPIRUN = "mpirun -np 2 python train.py"
MPIRUN_WITH_PS = "KERASDIST_NUM_PS=1 mpirun -np 3 python train.py"
TORCHRUN = "torchrun --standalone --nproc-per-node 2 --max-restarts 1 train.py"
TORCHRUN_ELASTIC = (
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 1:2 --max-restarts 3 "
    '--rdzv-backend c10d --rdzv-id job1 --rdzv-endpoint "$ADDRESS" train.py'
)
RAY = "python deploy/ray_train.py"
BY_OTHER_LAUNCHERS = {
    SRUN,
    SRUN_WITH_PS,
    SBATCH,
    MPIRUN,
    MPIRUN_WITH_PS,
    TORCHRUN,
    TORCHRUN_ELASTIC,
    RAY,
}
