#!/usr/bin/env bash
# Joins machines into one Ray cluster for `cluster=two_nodes` and larger; run it on every node, in a folder that all nodes see.
#
#   scripts/ray_up.sh head [ADDRESS]         on the first node; ADDRESS is its own, as the others reach it
#   scripts/ray_up.sh join HEAD[:PORT]       on each other node
#   scripts/ray_up.sh wait                   returns when Ray runs on this node; after two minutes without it fails
#   source <(scripts/ray_up.sh env)          before python -m vime.run, on the node where it is started: token and address
#   scripts/ray_up.sh stop                   on every node, at the end
#
# Nodes prove with a token that they belong together: a file that the head makes (VIME_RAY_TOKEN, or outputs/ray_token).
# VIME_RAY_PORT (6379), VIME_RAY_TEMP (a short folder of this node's own), VIME_NODE_ADDRESS (of a joining node) and
# VIME_RAY_BLOCK=1 (stay in the foreground, as Slurm wants it) change the rest.
set -euo pipefail
cd "$(dirname "$0")/.."

token="${VIME_RAY_TOKEN:-$PWD/outputs/ray_token}"
port="${VIME_RAY_PORT:-6379}"
temporary="${VIME_RAY_TEMP:-/tmp/vime-ray-$(id -u)}"
ray=.venv/bin/ray
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token" RAY_worker_niceness=0 RAY_DISABLE_IMPORT_WARNING=1

options=(--disable-usage-stats --temp-dir="$temporary")
[[ ${VIME_RAY_BLOCK:-} == 1 ]] && options+=(--block)

usage() { sed -n '2,13p' "$0" | sed 's/^# \{0,1\}//'; exit 2; }

# The address of the cluster, which `ray start` writes last of all; Ray's `auto` looks below /tmp/ray only.
known="$temporary/ray_current_cluster"

# until_true COMMAND…: asks again for two minutes.
until_true() {
    for _ in {1..120}; do
        "$@" && return
        sleep 1
    done
    return 1
}

listens() { (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null; }

[[ -x $ray ]] || { echo "There is no .venv here: run make setup first." >&2; exit 1; }

case "${1:-}" in
    head)
        rm -f "$known"  # of a Ray that was killed
        mkdir -p "$(dirname "$token")"
        (umask 077 && "$PWD/.venv/bin/python" -c 'import secrets; print(secrets.token_hex(32))' >"$token")
        address="${2:-$(hostname -I | cut -d' ' -f1)}"
        echo "On the other nodes: scripts/ray_up.sh join $address:$port"
        "$ray" start --head --node-ip-address="$address" --port="$port" --include-dashboard=false "${options[@]}"
        ;;
    join)
        [[ -n ${2:-} ]] || usage
        head="$2"; [[ $head == *:* ]] || head="$head:$port"
        until_true listens "$head" || { echo "Nothing listens at $head: is that the head, and did it start?" >&2; exit 1; }
        [[ -r $token ]] || { echo "No token at $token: run the head first, and let all nodes see this folder." >&2; exit 1; }
        [[ -n ${VIME_NODE_ADDRESS:-} ]] && options+=(--node-ip-address="$VIME_NODE_ADDRESS")
        "$ray" start --address="$head" "${options[@]}"
        ;;
    wait) until_true test -s "$known" || { echo "No Ray of $0 has started on this node." >&2; exit 1; } ;;
    env)
        [[ -s $known ]] || { echo "No Ray of $0 runs on this node: start it with head or join." >&2; exit 1; }
        echo "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH='$token' RAY_ADDRESS='$(<"$known")'"
        ;;
    stop)  # not `ray stop`, which ends every Ray of this user
        .venv/bin/python - "$temporary" <<'PY'
import shutil, sys
import psutil

ours = [p for p in psutil.process_iter(["cmdline"]) if any(sys.argv[1] + "/" in w for w in p.info["cmdline"] or []) and p.pid != psutil.Process().pid]
for process in ours:
    process.terminate()
for process in psutil.wait_procs(ours, timeout=10)[1]:
    process.kill()
shutil.rmtree(sys.argv[1], ignore_errors=True)
PY
        ;;
    *) usage ;;
esac
