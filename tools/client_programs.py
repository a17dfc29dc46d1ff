"""Coding agents that are command-line programs, each with nothing changed but the address, the key and the name of its model.

`vime/agent/harness` starts Claude Code and Codex with settings of its own; here are others, and Codex as its user has it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from client_environments import AIDER, MINI_SWE_AGENT, OPENCODE, QWEN_CODE

from vime.agent.command import Command, CommandEnd
from vime.agent.harness.codex import Codex
from vime.agent.harness.home import home_files, home_in, home_variables
from vime.agent.harness.outcome import Outcome, silent_end
from vime.agent.harness.versions import CODEX

MODEL = "policy"


def _in_home(words: list[str], folder: Path, variables: Mapping[str, str], files: Mapping[str, str] | None = None) -> Command:
    """A program that reads no settings of the user; `files` are those of its home, by their path in there."""
    home = home_in(folder)
    texts = {str(home / path): text for path, text in (files or {}).items()}
    environment = {**home_variables(home), **variables}
    return Command(words=words, folder=folder, environment=environment, files=home_files(home) | texts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ByExitCode:
    """A program that tells by its exit code how it ended."""

    def outcome(self, end: CommandEnd) -> Outcome:
        """The way in which it ended."""
        return Outcome(ended_well=True, answer=end.stdout) if end.exit_code == 0 else silent_end(end)


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenCode(ByExitCode):
    """Qwen Code over Chat Completions or Messages."""

    protocol: str
    """`openai` or `anthropic`, as it calls them."""

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program with its task."""
        words = [QWEN_CODE.program("node"), QWEN_CODE.program("qwen"), "--yolo", "--auth-type", self.protocol, prompt]
        url = openai_url if self.protocol == "openai" else anthropic_url
        name = self.protocol.upper()
        variables = {f"{name}_BASE_URL": url, f"{name}_API_KEY": secret, f"{name}_MODEL": MODEL}
        path = f"{QWEN_CODE.modules / '.bin'}:/usr/local/bin:/usr/bin:/bin"
        return _in_home(words, folder, {**variables, "PATH": path})


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCode(ByExitCode):
    """opencode over the protocol of a package of Vercel's AI SDK, which its settings name."""

    package: str

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program with its task."""
        url = f"{anthropic_url}/v1" if self.package == "@ai-sdk/anthropic" else openai_url
        limits = {"limit": {"context": 65_536, "output": 4_096}}
        provider = {"npm": self.package, "options": {"baseURL": url, "apiKey": secret}, "models": {MODEL: limits}}
        settings = {"provider": {"session": provider}, "model": f"session/{MODEL}", "autoupdate": False, "share": "disabled"}
        words = [OPENCODE.program("opencode"), "run", "--auto", prompt]
        variables = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        return _in_home(words, folder, variables, {".config/opencode/opencode.json": json.dumps(settings)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Aider(ByExitCode):
    """aider, whose model answers with the whole file, as aider asks models that it does not know."""

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program with its task."""
        words = [str(AIDER.folder / "bin" / "aider"), "--model", f"openai/{MODEL}", "--yes-always", "--no-git"]
        words += [
            "--no-check-update",
            "--no-show-model-warnings",
            "--analytics-disable",
            "--no-show-release-notes",
            "--map-tokens",
            "0",
        ]
        words += ["--message", prompt, "ledger.txt"]
        variables = {"OPENAI_API_BASE": openai_url, "OPENAI_API_KEY": secret, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        return _in_home(words, folder, variables)


@dataclass(frozen=True, kw_only=True, slots=True)
class MiniSweAgent(ByExitCode):
    """mini-swe-agent; it needs a setting that the cost of its model is unknown."""

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program with its task."""
        words = [str(MINI_SWE_AGENT.folder / "bin" / "mini"), "--yolo", "--exit-immediately", "--model", f"openai/{MODEL}"]
        words += ["--task", prompt, "--output", str(folder / "trajectory.json")]
        variables = {"OPENAI_API_BASE": openai_url, "OPENAI_API_KEY": secret, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        variables |= {"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true"}
        return _in_home(words, folder, variables)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodexByUrl:
    """Codex with its own provider, OpenAI, at another base URL; it compacts as it does there."""

    context_window: int | None = None
    """Number of tokens at which it begins to compact its history, if its user sets one."""

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program with its task. Raises ConfigError if it is not installed."""
        words = [CODEX.installed(), "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        words += ["-c", f"openai_base_url={json.dumps(openai_url)}", "-c", f'model="{MODEL}"']
        if self.context_window is not None:
            words += ["-c", f"model_context_window={self.context_window}"]
        login = {"auth_mode": "apikey", "OPENAI_API_KEY": secret}
        return _in_home([*words, "--", prompt], folder, {}, {".codex/auth.json": json.dumps(login)})

    def outcome(self, end: CommandEnd) -> Outcome:
        """The way in which it ended, as every Codex tells it."""
        return Codex().outcome(end)
