#!/bin/bash
# A job of Slurm: one task for each rank. `sbatch slurm.sh`
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
# SIGTERM two minutes before the end, so that ranks save what they have.
#SBATCH --signal=TERM@120
set -euo pipefail

# Ranks of several hosts prove to each other that they belong to the job.
SHOAL_SECRET=$(openssl rand -hex 32)
export SHOAL_SECRET
# Ports 9464 … 9467 of each node, one for each rank.
export SHOAL_METRICS=0.0.0.0:9464
ulimit -n "$(ulimit -Hn)"

# Slurm gives each task its number; the first host of the job serves the store.
srun --kill-on-bad-exit=1 npx tsx train.ts
