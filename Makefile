# Everything starts here; `make` shows what there is.
.DEFAULT_GOAL := help
.PHONY: help setup demo quick test long test-gpu gpu-build-check check types fields faults agents clients view
SHELL := /bin/bash

# .venv and this folder are ours to write compiled modules into; without these, each program compiles everything it imports again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## Show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Make .venv with everything, for this machine's GPU or CPU
	@scripts/setup.sh

demo: setup  ## Train MemAgent on the tiny model, start to finish, and show the gain
	@.venv/bin/python -m vime.run +method=memagent

view: setup  ## Show the runs below outputs/ in a browser, also those in progress
	@.venv/bin/python -m vime.view

quick: setup  ## Run the tests that start no server, no Ray and no trainer
	@.venv/bin/python -m pytest -q -m 'not slow' --numprocesses logical --maxprocesses 8 --dist worksteal

test: quick  ## Run all tests but the long ones on the CPU, with real vLLM, Megatron and Ray
	@.venv/bin/python -m pytest -m 'slow and not long' --numprocesses logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

long: setup  ## Run the long tests, which add whole runs and layouts to those of `make test`
	@.venv/bin/python -m pytest -m long --numprocesses logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

test-gpu: setup  ## Run the tests that need a CUDA device, one after another
	@.venv/bin/python -m pytest -m gpu

gpu-build-check: setup  ## Resolve, install and import the GPU build, and configure its servers, without a GPU
	@.venv/bin/python tools/gpu_build_check.py

check: setup  ## Lint (scripts as well), formats, types, a reader for every setting, prose of docstrings, the page of settings
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/shellcheck --external-sources scripts/*.sh .ci/run
	@.venv/bin/hadolint scripts/Containerfile
	@$(MAKE) --no-print-directory --jobs 2 types fields
	@.venv/bin/python tools/check_prose.py
	@.venv/bin/python tools/settings_page.py --check

# Two passes of pyright over all sources, side by side, with room for what it reads of the libraries.
types fields: export NODE_OPTIONS = --max-old-space-size=8192

types:
	@.venv/bin/pyright

fields:
	@.venv/bin/python tools/check_fields.py

faults: setup  ## Break real runs in every known way and count what is lost
	@.venv/bin/python tools/faults.py

agents: setup  ## Install Claude Code and Codex with npm, for agents and tests that start them
	@.venv/bin/python scripts/install_agents.py

clients: agents  ## Run real clients of all protocols, each in its own environment, and audit what is trained of them
	@.venv/bin/python tools/clients.py --served
