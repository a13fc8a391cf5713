#!/bin/bash
# An array of tasks, any of which may run at any time, on any node, or again:
#     sbatch slurm.sh --model Qwen/Qwen2.5-7B --source texts.jsonl --sites resid_post:14 --out /scratch/activations
# Which are still to do:  llama-jax extract --pending --out /scratch/activations
#SBATCH --job-name=activations
#SBATCH --array=0-31
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=activations-%A-%a.log
# with GPUs, one a task: #SBATCH --gpus-per-task=1
set -euo pipefail
exec llama-jax extract --shard auto "$@"
