#!/usr/bin/env bash
# Runs vime on the nodes of a Slurm allocation: one Ray cluster over all of them, then the command on the first.
#
#   sbatch --nodes=2 --gpus-per-node=8 scripts/slurm.sh +method=memagent model=qwen2.5-7b cluster=two_nodes
#
# The log is slurm-JOB.log in the folder of the submission, which must be one that all nodes see.
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start this with sbatch}"

# Steps share all cores and GPUs of a node (--overlap), and a site's default may not bind the one task of each to a core.
on() { srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --nodelist="$1" "${@:2}"; }

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}"
address="$(on "$head" hostname -I | cut -d' ' -f1)"
export VIME_RAY_TOKEN="$PWD/outputs/ray_token_$SLURM_JOB_ID" VIME_RAY_TEMP="/tmp/vime-ray-$SLURM_JOB_ID" VIME_RAY_BLOCK=1
trap 'srun --overlap --ntasks-per-node=1 --cpu-bind=none scripts/ray_up.sh stop || true; rm -f "$VIME_RAY_TOKEN"' EXIT

on "$head" scripts/ray_up.sh head "$address" &
for node in "${nodes[@]:1}"; do
    on "$node" scripts/ray_up.sh join "$address" &
done
scripts/ray_up.sh wait  # this script runs on the first node
# shellcheck source=/dev/null
source <(scripts/ray_up.sh env)
on "$head" .venv/bin/python -m vime.run "$@"
