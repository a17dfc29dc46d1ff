"""The environments of the clients, in pinned versions: their dependencies may contradict each other."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path.home() / ".cache" / "vime" / "clients"
INSTALL_SECONDS = 900
NODE = "node@24.21.0"
"""An npm package that brings the program, since many clients want a newer one than systems have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """A virtual environment. Example: `Environment(packages=("openai==3.54.0",))`."""

    packages: tuple[str, ...]
    interpreter: str = sys.executable
    """The Python that it is made with."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of its programs."""
    reads_vime: bool = False
    """True if `agentic.integrations` can be imported there; none of vime's dependencies are installed for that."""

    @property
    def folder(self) -> Path:
        """Its folder; another version has another one."""
        return FOLDER / "-".join(re.sub(r"\[.*\]", "", package).replace("==", "-") for package in self.packages)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def interpreter_path(self) -> str:
        """The program that runs its scripts."""
        return str(self.python)

    @property
    def all_variables(self) -> dict[str, str]:
        """Variables that its programs need beside the address and key of their model."""
        return dict(self.variables)

    def build(self) -> None:
        """Makes the environment if it is missing; in any case it then reads this checkout's vime."""
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
        if importlib.util.find_spec("uv") is not None:  # it keeps one copy of a file for all environments
            run_uv = [sys.executable, str(ROOT / "scripts" / "run_uv.py"), "pip", "install", "--quiet", "--compile-bytecode"]
            install = [*run_uv, "--python", str(self.python), *self.packages]
        else:
            install = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages]
        for words in ([self.interpreter, "-m", "venv", str(self.folder)], install):
            subprocess.run(words, check=True, timeout=INSTALL_SECONDS)

    def versions(self) -> str:
        """The versions of its packages that are installed."""
        names = [re.split(r"\[|==", package)[0] for package in self.packages]
        return ", ".join(f"{name} {installed_version(self.python, name)}" for name in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEnvironment:
    """A folder of npm packages with a Node.js of its own. Example: `NodeEnvironment(packages=("openai@7.57.0",))`."""

    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Its folder; another version has another one."""
        return FOLDER / "-".join(re.sub("[@/]+", "-", package).strip("-") for package in (*self.packages, NODE))

    @property
    def modules(self) -> Path:
        """The folder of its packages."""
        return self.folder / "node_modules"

    def program(self, name: str) -> str:
        """The path of a package's program."""
        return str(self.modules / ".bin" / name)

    @property
    def interpreter_path(self) -> str:
        """The program that runs its scripts."""
        return self.program("node")

    @property
    def all_variables(self) -> dict[str, str]:
        """Variables by which a script elsewhere finds its packages."""
        return {"NODE_PATH": str(self.modules)}

    def build(self) -> None:
        """Makes it if it is not there."""
        finished = self.folder / "finished"
        if not finished.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            sys.stderr.write(f"Installing {' '.join(self.packages)} in {self.folder}\n")
            words = ["npm", "install", "--prefix", str(self.folder), "--no-audit", "--no-fund", "--loglevel=error"]
            subprocess.run([*words, NODE, *self.packages], check=True, timeout=INSTALL_SECONDS)
            finished.touch()

    def versions(self) -> str:
        """The versions of its packages that are installed."""
        names = [package.rpartition("@")[0] for package in self.packages]
        found = {name: json.loads((self.modules / name / "package.json").read_text())["version"] for name in names}
        return ", ".join(f"{name} {version}" for name, version in found.items())


def installed_version(python: Path | str, package: str) -> str:
    """The version of a package that an interpreter finds."""
    words = [str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


OPENAI = Environment(packages=("openai==3.57.0",))
ANTHROPIC = Environment(packages=("anthropic==2.13.0",))
LANGGRAPH = Environment(packages=("langgraph==1.2.22", "langchain-openai==1.7.3"))
STRANDS = Environment(packages=("strands-agents[openai]==1.62.0",), reads_vime=True)
AGENT_LIGHTNING = Environment(
    packages=("agentlightning==0.3.0", "tinker==0.38.0", "torch==2.13.0+cpu"),
    variables=(("LITELLM_LOCAL_MODEL_COST_MAP", "True"),),  # otherwise an import asks the network
    reads_vime=True,
)
AGENT_LIGHTNING_SERVER = Environment(packages=("agentlightning==1.0.2",), interpreter="python3.12")
OPENAI_AGENTS = Environment(packages=("openai-agents==0.24.0", "openai==3.54.0"))
PYDANTIC_AI = Environment(packages=("pydantic-ai-slim[openai,anthropic]==2.66.0",))
SMOLAGENTS = Environment(packages=("smolagents[openai]==1.26.0",))
AGENT_FRAMEWORK = Environment(packages=("agent-framework-openai==1.17.0",))
AUTOGEN = Environment(packages=("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"))
LLAMA_INDEX = Environment(packages=("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"))
INSTRUCTOR = Environment(packages=("instructor[anthropic]==1.17.0",))
DSPY = Environment(packages=("dspy==3.4.1",))
LITELLM = Environment(packages=("litellm==1.110.2",))
GOOGLE_ADK = Environment(packages=("google-adk==2.13.0", "litellm==1.110.2"))
CREWAI = Environment(packages=("crewai==1.15.30",))
CLAUDE_AGENT_SDK = Environment(packages=("claude-agent-sdk==0.2.188",))
MINI_SWE_AGENT = Environment(packages=("mini-swe-agent==2.4.6",))
AIDER = Environment(packages=("aider-chat==0.86.2",))
OPENAI_JS = NodeEnvironment(packages=("openai@7.57.0", "zod@4.6.7"))
ANTHROPIC_JS = NodeEnvironment(packages=("@anthropic-ai/sdk@1.13.0", "zod@4.6.7"))
AI_SDK = NodeEnvironment(
    packages=(
        "ai@7.0.173",
        "@ai-sdk/openai@4.0.118",
        "@ai-sdk/anthropic@4.0.105",
        "@ai-sdk/openai-compatible@3.0.92",
        "zod@4.6.7",
    )
)
QWEN_CODE = NodeEnvironment(packages=("@qwen-code/qwen-code@0.24.4",))
OPENCODE = NodeEnvironment(packages=("opencode-ai@1.18.33",))
