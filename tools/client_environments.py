"""The environments of the clients in Python, in pinned versions: what one of them depends on need not agree with any other."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path.home() / ".cache" / "vime" / "clients"
INSTALL_SECONDS = 900


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """A virtual environment. Example: `Environment(packages=("openai==3.54.0",))`."""

    packages: tuple[str, ...]
    interpreter: str = sys.executable
    """The Python that it is made with."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of its programs."""
    reads_vime: bool = False
    """Whether `vime.integrations` can be imported there; nothing of what vime depends on is installed for that."""

    @property
    def folder(self) -> Path:
        """Where it is; another version is another folder."""
        return FOLDER / "-".join(re.sub(r"\[.*\]", "", package).replace("==", "-") for package in self.packages)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def build(self) -> None:
        """Makes it if it is not there; also one that is there reads this checkout's vime."""
        finished = self.folder / "finished"
        if not finished.exists():
            self._install()
            finished.touch()
        if self.reads_vime:
            [site] = self.folder.glob("lib/python*/site-packages")
            (site / "vime.pth").write_text(f"{ROOT}\n")

    def _install(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        sys.stderr.write(f"Installing {' '.join(self.packages)} in {self.folder}\n")
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages]
        for words in ([self.interpreter, "-m", "venv", str(self.folder)], pip):
            subprocess.run(words, check=True, timeout=INSTALL_SECONDS)


def installed_version(python: Path | str, package: str) -> str:
    """The version of a package that an interpreter finds."""
    words = [str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


OPENAI = Environment(packages=("openai==3.54.0",))
ANTHROPIC = Environment(packages=("anthropic==2.12.0",))
LANGGRAPH = Environment(packages=("langgraph==1.2.22", "langchain-openai==1.7.3"))
STRANDS = Environment(packages=("strands-agents[openai]==1.62.0",), reads_vime=True)
AGENT_LIGHTNING = Environment(
    packages=("agentlightning==0.3.0",),
    variables=(("LITELLM_LOCAL_MODEL_COST_MAP", "True"),),  # otherwise an import asks the network
    reads_vime=True,
)
AGENT_LIGHTNING_SERVER = Environment(packages=("agentlightning==1.0.2",), interpreter="python3.12")
OPENAI_AGENTS = Environment(packages=("openai-agents==0.24.0", "openai==3.54.0"))
