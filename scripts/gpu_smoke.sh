#!/usr/bin/env bash
# Checks on a CUDA machine what needs one: context parallelism over NCCL, ipc and nccl, sleep and wake, bfloat16,
# prefill and decode servers apart (two GPUs and the package nixl).
#
# It needs all packages: a .venv that has them is used as it is, and only without one is there a set-up, which needs a network.
# Models and data of the checks are in the repository. Where there is no vLLM, Ray or network, tools/gpu_check.py alone checks the
# trainer, with PyTorch, transformers and a folder of wheels.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v nvidia-smi >/dev/null || { echo "There is no nvidia-smi here: this needs a CUDA machine." >&2; exit 1; }
if .venv/bin/python -c 'import megatron.core, ray, torch, transformers, vllm' 2>/dev/null; then
    echo "Using .venv as it is."
else
    make setup
fi
export HF_HUB_OFFLINE=1
nvidia-smi --query-gpu=name,memory.total --format=csv
.venv/bin/python -c 'import torch; assert torch.cuda.is_available(), "PyTorch sees no CUDA device"; print(torch.__version__, torch.cuda.device_count(), "device(s)")'
.venv/bin/python tools/gpu_check.py --device cuda --json outputs/gpu_check.json
.venv/bin/python -m pytest -m gpu -ra
.venv/bin/python -m vime.run +method=memagent cluster=one_gpu name=gpu_smoke trainer.num_steps=4 evaluation.num_runs=1
[[ ! -f tools/bench_trainer.py ]] || .venv/bin/python tools/bench_trainer.py --json outputs/gpu_smoke_bench.json
echo "All checks that this machine can do have passed; skipped ones are listed above."
