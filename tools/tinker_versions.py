"""Drives the training service with every version of the tinker SDK that can be installed, and writes which calls work.

    python tools/tinker_versions.py [--versions 0.38.0 …] [--markdown results/tinker_versions.md]

Each version runs `clients/tinker_calls.py` in an environment of its own against one service of the tiny model. It ends with 1 if
a call of the newest version does not work.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_rows import ROOT, Result, circumstances
from client_environments import Environment

from vime.surroundings import settle

OLDEST = (0, 25)
"""The first version whose training data are protobuf on the wire."""
MODEL = "agentic/memagent/tiny/actor"
START_SECONDS, CALL_SECONDS = 600, 400
WORKS = "works"


def main() -> int:
    """Runs the versions one after another; returns the exit code."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--versions", nargs="+", help="versions of tinker; by default all that can be installed, from 0.25 on")
    parser.add_argument("--port", type=int, default=8931, help="port of the service (default %(default)s)")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    page = Result(title="The training service and versions of the tinker SDK")
    versions = options.versions or installable()
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="vime-tinker-") as folder:
        words = ["model=tiny", f"model.checkpoint={MODEL}", f"output_dir={folder}/service", "service.max_models=64"]
        with served(words, options.port, Path(folder) / "service.log") as url:
            for version in versions:
                found[version] = outcome(version, url)
                sys.stderr.write(f"{version}: {found[version]}\n")
                if options.markdown:
                    options.markdown.write_text(markdown(page, found), encoding="utf-8")
    sys.stdout.write(markdown(page, found))
    return 0 if set(found[versions[0]].values()) == {WORKS} else 1


def installable() -> list[str]:
    """The versions of tinker that pip finds, newest first."""
    words = [sys.executable, "-m", "pip", "index", "versions", "tinker", "--disable-pip-version-check"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    listed = re.search(r"Available versions: (.+)", text)
    assert listed is not None, text
    versions = listed[1].split(", ")
    return [each for each in versions if tuple(map(int, each.split(".")[:2])) >= OLDEST]


@contextmanager
def served(words: list[str], port: int, log: Path) -> Iterator[str]:
    """A service with these settings, which writes to `log`; gives its address."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as file:
        command = [sys.executable, "-m", "vime.service", *words, f"service.port={port}"]
        service = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        try:
            until_served(url, service, log)
            yield url
        finally:
            service.terminate()
            service.wait()


def until_served(url: str, service: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the service answers. Raises RuntimeError with its log if it ends."""
    request = urllib.request.Request(f"{url}/api/v1/healthz", headers={"X-API-Key": "tml-versions"})
    for _ in range(START_SECONDS):
        if service.poll() is not None:
            raise RuntimeError(log.read_text())
        try:
            urllib.request.urlopen(request, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1.0)
    raise RuntimeError(log.read_text())


def outcome(version: str, url: str) -> dict[str, str]:
    """The outcome of each feature with one version; of all of them together where it cannot be installed, or ends early."""
    environment = Environment(packages=(f"tinker=={version}", "torch==2.13.0+cpu"))
    try:
        environment.build()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"all": f"cannot be installed ({error})"}
    variables = os.environ | {"TINKER_BASE_URL": url, "TINKER_API_KEY": f"tml-{version}", "HF_HUB_OFFLINE": "1"}
    words = [environment.interpreter_path, str(ROOT / "tools" / "clients" / "tinker_calls.py"), "tiny"]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=CALL_SECONDS, env=variables, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return {"all": f"no end after {CALL_SECONDS} s"}
    sys.stderr.write(ended.stderr[-4000:] if ended.returncode or '": "works"' not in ended.stdout else "")
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"all": (ended.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def markdown(page: Result, found: dict[str, dict[str, str]]) -> str:
    """The page: a row for each version with the number of features that work, and the reasons where some do not."""
    facts = "\n".join(f"- {line}" for line in circumstances(page))
    rows = []
    for version, outcomes in found.items():
        failed = {name: reason for name, reason in outcomes.items() if reason != WORKS}
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items()).replace("|", "\\|")
        rows.append(f"| {version} | {len(outcomes) - len(failed)} of {len(outcomes)} | {reasons or 'all work'} |")
    features = ", ".join(f"“{name}”" for name in next(iter(found.values()), {}))
    note = f"Features ({'tools/clients/tinker_calls.py'}): {features}."
    return f"# {page.title}\n\n{facts}\n\n| tinker | works | else |\n|---|--:|---|\n" + "\n".join(rows) + f"\n\n{note}\n"


if __name__ == "__main__":
    sys.exit(main())
