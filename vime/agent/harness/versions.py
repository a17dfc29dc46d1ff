"""The pinned versions of the agents that are programs of others, and where they are installed.

`make agents` (`scripts/install_agents.py`) installs them; nothing else needs them.
"""

from dataclasses import dataclass
from pathlib import Path

from vime.errors import ConfigError, Problem
from vime.surroundings import cache_folder

FOLDER = cache_folder("agents")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """An npm package in one version. Example: `Pinned(name="codex", package="@openai/codex", version="0.169.0")`."""

    name: str
    package: str
    version: str
    command: str
    """The package's name for its program."""

    @property
    def folder(self) -> Path:
        """The folder in which this version is installed."""
        return FOLDER / f"{self.name}-{self.version}"

    @property
    def program(self) -> Path:
        """The file to start."""
        return self.folder / "node_modules" / ".bin" / self.command

    def installed(self) -> str:
        """The path of the program. Raises ConfigError if it is not installed."""
        if not self.program.exists():
            remedy = f"is not installed in version {self.version}: run `make agents`, which needs npm"
            raise ConfigError([Problem(key=self.name, value=str(self.program), remedy=remedy)])
        return str(self.program)


CLAUDE_CODE = Pinned(name="claude-code", package="@anthropic-ai/claude-code", version="2.1.331", command="claude")
"""The latest version that takes Node 20; its program itself is native."""
CODEX = Pinned(name="codex", package="@openai/codex", version="0.169.0", command="codex")
PINNED = (CLAUDE_CODE, CODEX)
BY_NAME = {"claude_code": CLAUDE_CODE, "codex": CODEX}
"""The programs by their names in settings."""
