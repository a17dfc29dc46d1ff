"""Ray over several machines, and on the nodes of a Slurm allocation, with stand-ins for Slurm, Ray and the program itself."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vime.cluster.ports import free_port

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
SCONTROL = "#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n"
HOSTNAME = "#!/bin/sh\necho '127.0.0.1 10.9.9.9'\n"
SRUN = """#!/bin/bash
export NODE=every
while [[ ${1:-} == --* ]]; do
    [[ $1 == --nodelist=* ]] && NODE=${1#*=}
    shift
done
exec "$@"
"""
RAY = """#!/bin/bash
echo "$NODE ray $*" >>record
[[ -r $RAY_AUTH_TOKEN_PATH && $RAY_AUTH_MODE == token ]] || echo "$NODE has no token" >>record
for word in "$@"; do
    [[ $word == --temp-dir=* ]] && folder=${word#*=}
    [[ $word == --port=* ]] && port=${word#*=}
done
mkdir -p "$folder"
if [[ $2 == --head ]]; then
    "$REAL_PYTHON" -c "
import socket, sys, time
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    server.accept()[0].close()" "$port" &
    echo -n "127.0.0.1:$port" >"$folder/ray_current_cluster"
fi
[[ " $* " != *" --block "* ]] || sleep 1000
"""
PYTHON = """#!/bin/bash
case "$*" in
    "-m vime.run"*)
        printf '<%s>' "${@:3}" >words
        until grep -q 'n2 ray' record && grep -q 'n3 ray' record; do sleep 0.1; done
        echo "$NODE runs with $RAY_AUTH_MODE $RAY_ADDRESS $(wc -c <"$RAY_AUTH_TOKEN_PATH")" >>record
        exit 7 ;;
    "- /"*) echo "$NODE stops $2" >>record ;;
    *) exec "$REAL_PYTHON" "$@" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with the scripts, and a PATH and an environment of stand-ins."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    programs = {
        "bin/scontrol": SCONTROL,
        "bin/hostname": HOSTNAME,
        "bin/srun": SRUN,
        ".venv/bin/ray": RAY,
        ".venv/bin/python": PYTHON,
    }
    for name, text in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The variables of a job on the stand-ins."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "REAL_PYTHON": sys.executable, "VIME_RAY_TEMP": str(folder / "temporary"), **more}


def test_an_allocation_becomes_one_ray_and_the_run_knows_its_address_and_token(folder: Path) -> None:
    port, job = free_port("127.0.0.1", 0), f"{os.getpid()}7"
    variables = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_ID": job, "VIME_RAY_PORT": str(port)}
    shutil.copy(folder / "scripts" / "slurm.sh", folder / "spooled")  # as sbatch does
    command = ["bash", "spooled", "+method=memagent", "name=two words"]
    process = subprocess.Popen(command, cwd=folder, env=environment(folder, **variables), start_new_session=True)
    try:
        assert process.wait(100) == 7
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(f"/tmp/vime-ray-{job}", ignore_errors=True)
    record = (folder / "record").read_text().splitlines()
    assert "no token" not in "".join(record)
    assert record[0].startswith("n1 ray start --head --node-ip-address=127.0.0.1") and f"--port={port}" in record[0]
    joined = [line for line in record if f"ray start --address=127.0.0.1:{port}" in line]
    assert sorted(line[:2] for line in joined) == ["n2", "n3"] and all("--block" in line for line in (record[0], *joined))
    assert f"n1 runs with token 127.0.0.1:{port} 65" in record and record[-1] == f"every stops /tmp/vime-ray-{job}"
    assert (folder / "words").read_text() == "<+method=memagent><name=two words>"
    assert list((folder / "outputs").iterdir()) == []


def test_the_log_of_a_job_has_a_place_in_a_fresh_clone() -> None:
    output = re.search(r"(?m)^#SBATCH --output=(\S+)$", (SCRIPTS / "slurm.sh").read_text())
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output is not None
    parent = os.path.dirname(output[1])
    assert not parent or any(name.startswith(f"{parent}/") for name in listed.splitlines())


def test_without_a_ray_of_its_own_a_node_has_no_address_to_give(folder: Path) -> None:
    command = ["bash", "scripts/ray_up.sh", "env"]
    before = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True)
    assert before.returncode == 1 and before.stdout == "" and "runs on this node: start it" in before.stderr
    (folder / "temporary").mkdir()
    (folder / "temporary" / "ray_current_cluster").write_text("10.0.0.7:6379")
    after = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True)
    assert after.returncode == 0 and "RAY_ADDRESS='10.0.0.7:6379'" in after.stdout
    assert subprocess.run(["bash", "scripts/ray_up.sh", "wait"], cwd=folder, env=environment(folder)).returncode == 0


def test_a_head_forgets_the_address_of_one_that_was_killed(folder: Path) -> None:
    (folder / "temporary").mkdir()
    (folder / "temporary" / "ray_current_cluster").write_text("10.0.0.7:6379")
    (folder / ".venv" / "bin" / "ray").write_text("#!/bin/sh\nexit 1\n")
    command = ["bash", "scripts/ray_up.sh", "head", "127.0.0.1"]
    assert subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True).returncode == 1
    assert not (folder / "temporary" / "ray_current_cluster").exists()


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda script: script.name)
def test_a_script_is_one_that_bash_reads(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0


def test_the_task_of_skypilot_sets_up_as_everybody_does_and_starts_what_is_there() -> None:
    task = yaml.safe_load((SCRIPTS / "skypilot.yaml").read_text())
    assert set(task) == {"name", "workdir", "resources", "envs", "setup", "run"}
    assert "make setup" in task["setup"] and os.access(ROOT / task["envs"]["COMMAND"], os.X_OK)
    for text in (task["setup"], task["run"]):
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
