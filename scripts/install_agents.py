"""Installs the pinned versions of Claude Code and Codex for this user, with npm: `make agents`.

The versions and the folders are those of `vime/agent/harness/versions.py`; existing files stay. Nothing else of vime needs these
programs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from vime.agent.harness.versions import PINNED, Pinned

INSTALL_SECONDS, VERSION_SECONDS = 900, 60
NO_NPM = "make agents: npm is not installed. It comes with Node.js 20 or later (Debian and Ubuntu: apt-get install npm)"


def install(pinned: Pinned) -> None:
    """Installs a package beside its place, and then puts it there, so that no half of it is ever found."""
    with tempfile.TemporaryDirectory(dir=pinned.folder.parent, prefix=f".{pinned.name}-") as folder:
        words = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run([*words, f"{pinned.package}@{pinned.version}"], check=True, timeout=INSTALL_SECONDS)
        shutil.rmtree(pinned.folder, ignore_errors=True)
        os.chmod(folder, 0o755)  # a workspace starts it as another user
        os.rename(folder, pinned.folder)
        os.mkdir(folder)  # which the block removes


def version_of(pinned: Pinned) -> str:
    """The version that the program reports, in a home folder of its own."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "CODEX_HOME": home, "CLAUDE_CONFIG_DIR": home}
        words = [str(pinned.program), "--version"]
        done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True, timeout=VERSION_SECONDS)
    return done.stdout.strip()


def main() -> None:
    """Installs missing agents, and prints the installed versions."""
    for pinned in PINNED:
        if not pinned.program.exists():
            if shutil.which("npm") is None:
                sys.exit(NO_NPM)
            pinned.folder.parent.mkdir(parents=True, exist_ok=True)
            install(pinned)
        found = version_of(pinned)
        if pinned.version not in found:
            sys.exit(f"make agents: {pinned.program} is {found}, not {pinned.version}; remove {pinned.folder} and try again")
        sys.stdout.write(f"{found}: {pinned.program}\n")


if __name__ == "__main__":
    try:
        main()
    except subprocess.SubprocessError as error:
        sys.exit(f"make agents: {error}")
