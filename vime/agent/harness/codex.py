"""Codex, which speaks OpenAI's Responses.

harness = Codex()
end = await run_command(harness.command("Fix the bug.", openai_url=session.openai_url, …, folder=folder))
harness.outcome(end)        # Outcome(ended_well=True, answer="The bug is fixed.")
"""

import json
from dataclasses import dataclass
from pathlib import Path

from vime.agent.command import Command, CommandEnd
from vime.agent.harness.home import home_files, home_in, home_variables
from vime.agent.harness.outcome import REASON_CHARACTERS, Outcome, events_of, silent_end
from vime.agent.harness.versions import CODEX

KEY = "SESSION_KEY"
"""The variable that holds the session's secret."""
SETTINGS = """\
model = "policy"
model_provider = "session"
model_context_window = {context_window}
web_search = "disabled"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.session]
name = "session"
base_url = {url}
env_key = "{key}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 1
"""
"""Codex's config.toml. A request that the gateway refuses is not repeated; a broken stream is requested again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Codex:
    """Settings with which Codex is started. It has no limit of turns of its own: the session's `Limits(num_calls=…)` is one."""

    context_window: int = 32_768
    """Number of tokens at which it begins to compact its history."""

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program with its task. Raises ConfigError if it is not installed."""
        program, home = CODEX.installed(), home_in(folder)
        settings = home / ".codex"
        text = SETTINGS.format(context_window=self.context_window, url=json.dumps(openai_url), key=KEY)
        words = [program, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        words += ["--disable", "multi_agent", "--disable", "goals", "--", prompt]
        environment = {**home_variables(home), "CODEX_HOME": str(settings), KEY: secret}
        files = home_files(home) | {str(settings / "config.toml"): text}
        return Command(words=words, folder=folder, environment=environment, files=files)

    def outcome(self, end: CommandEnd) -> Outcome:
        """The outcome, by the events of its output."""
        answer = problem = ""
        completed = False
        for event in events_of(end.stdout):
            item, kind = event.get("item") or {}, event.get("type")
            if kind == "item.completed" and item.get("type") == "agent_message":
                answer = str(item.get("text") or "")
            elif kind in ("turn.failed", "error"):
                problem = str((event.get("error") or event).get("message") or "")
            completed = kind == "turn.completed" or (completed and kind != "turn.failed")
        if completed and end.exit_code == 0:
            return Outcome(ended_well=True, answer=answer)
        if problem:
            return Outcome(ended_well=False, reason=problem[:REASON_CHARACTERS], answer=answer)
        return silent_end(end)
