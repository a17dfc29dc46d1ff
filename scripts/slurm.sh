#!/usr/bin/env bash
# Runs vime on the nodes of a Slurm allocation: one Ray cluster over all of them, then the command on the first.
#
#   sbatch --nodes=2 --gpus-per-node=8 scripts/slurm.sh +method=memagent model=qwen2.5-7b cluster=two_nodes
#
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --output=outputs/slurm-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start this with sbatch}"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}"
address="$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | cut -d' ' -f1)"
export VIME_RAY_TOKEN="$PWD/outputs/ray_token_$SLURM_JOB_ID" VIME_RAY_TEMP="/tmp/vime-ray-$SLURM_JOB_ID"
source <(scripts/ray_up.sh env)

export VIME_RAY_BLOCK=1
for node in "${nodes[@]}"; do
    [[ $node == "$head" ]] && action=(head "$address") || action=(join "$address")
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" scripts/ray_up.sh "${action[@]}" &  # ends with the job
    [[ $node == "$head" ]] && sleep 10
done
trap 'rm -f "$VIME_RAY_TOKEN"' EXIT
sleep 10
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" .venv/bin/python -m vime.run "$@"
