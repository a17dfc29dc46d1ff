"""Pins every package that the CPU and the GPU build install: `python scripts/constraints.py` (with the interpreter of `.venv`).

Writes `scripts/constraints/{cpu,gpu}-3.NN.txt`, one file for each build and promised version of Python, with the hashes of all
files of a package. uv resolves them from where pip is configured to look; the files name no index. The CPU build of PyTorch has a
local version that plain registries lack, so `scripts/setup.sh` chooses torch itself there, and the CPU files leave it out.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "scripts" / "constraints"
PYTHONS = ("3.11", "3.12", "3.13")
BUILDS = ("cpu", "gpu")
PLATFORM = "x86_64-manylinux_2_35"
"""The C library of Ubuntu 22.04, the oldest system of usual GPU machines; 24.04 and Debian 12 and 13 have newer ones."""
NO_WHEEL = ("antlr4-python3-runtime",)
"""Packages without wheels, which are built when they are installed; pure Python all of them."""
CPU_EXCLUDES = ("torch", "torchvision", "torchaudio", "torchcodec")


def file_of(build: str, python: str) -> Path:
    """The constraints of a build for one version of Python."""
    return FOLDER / f"{build}-{python}.txt"


def pins(file: Path) -> dict[str, str]:
    """The version of each package that a file of constraints names."""
    return dict(re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^\s\\;]+)", file.read_text(encoding="utf-8")))


def resolve(build: str, python: str, *, file: Path) -> None:
    """Resolves one build. Raises CalledProcessError if there is no solution; uv has said why by then."""
    words = ["pip", "compile", "--quiet", "pyproject.toml", "--extra", build, "--extra", "dev"]
    words += ["--generate-hashes", "--no-annotate", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    words += ["--python-version", python, "--python-platform", PLATFORM, "--only-binary", ":all:"]
    words += [word for name in NO_WHEEL for word in ("--no-binary", name)]
    with tempfile.TemporaryDirectory() as folder:
        if build == "cpu":
            excluded = Path(folder) / "excluded.txt"
            excluded.write_text("".join(f"{name}\n" for name in CPU_EXCLUDES), encoding="utf-8")
            words += ["--excludes", str(excluded)]
        # A file of its own: uv prefers versions of an earlier output, and then misses wheels that their hashes exclude.
        written = Path(folder) / file.name
        # Folders of wheels and further indexes may hold builds of their own, such as torch+cpu, in place of the public ones.
        environment = os.environ | {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
        program = [sys.executable, str(ROOT / "scripts" / "run_uv.py"), *words, "--output-file", str(written)]
        subprocess.run(program, cwd=ROOT, check=True, env=environment)
        shutil.copyfile(written, file)


def main() -> None:
    """Writes all files, with the newest versions that `pyproject.toml` allows."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    FOLDER.mkdir(exist_ok=True)
    for build in BUILDS:
        for python in PYTHONS:
            resolve(build, python, file=file_of(build, python))
            print(f"{file_of(build, python).relative_to(ROOT)}: {len(pins(file_of(build, python)))} packages")


if __name__ == "__main__":
    main()
