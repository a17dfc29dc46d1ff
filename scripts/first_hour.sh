#!/usr/bin/env bash
# Everything that needs a GPU, in the order of a first hour, each step with a time limit and a log; writes results/gpu.md.
#
#   scripts/first_hour.sh                 on a machine with one NVIDIA card or more; some steps need eight
#   scripts/first_hour.sh --rehearse      without one: what can be tried on a CPU, and what only a card can answer
#   scripts/first_hour.sh --list          the steps; --only and --skip choose among them
#
# PYTHON=/path/to/python3.11 chooses the interpreter of the set-up, which is the first step, and of this program.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" tools/first_hour.py "$@"
