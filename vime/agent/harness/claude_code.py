"""Claude Code, which speaks Anthropic's Messages.

harness = ClaudeCode(tools="Bash,Read,Edit", max_turns=20)
end = await run_command(harness.command("Fix the bug.", anthropic_url=session.anthropic_url, …, folder=folder))
harness.outcome(end)        # Outcome(ended_well=True, answer="The bug is fixed.")
"""

from dataclasses import dataclass
from pathlib import Path

from vime.agent.command import Command, CommandEnd
from vime.agent.harness.home import home_files, home_in, home_variables
from vime.agent.harness.outcome import REASON_CHARACTERS, Outcome, events_of, silent_end
from vime.agent.harness.versions import CLAUDE_CODE

MODEL = "policy"
"""Any name is the session's model; all of Claude Code's own names for models lead to it."""
QUIET = {
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_PROMPT_CACHING": "1",
}
"""Variables that leave only the calls of the agent's own turns, without text that changes from call to call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaudeCode:
    """Settings with which Claude Code is started. Example: `ClaudeCode(tools="Bash,Read,Edit", max_turns=20)`."""

    tools: str = "Bash,Read,Edit"
    """The tools that the model is offered; "default" offers all, which makes prompts many times longer."""
    max_turns: int | None = None
    max_output_tokens: int = 4096
    """Maximum number of tokens that one call may sample."""
    thinks: bool = False
    """True if it asks for thinking, and sends it back."""

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program with its task. Raises ConfigError if it is not installed."""
        program, home = CLAUDE_CODE.installed(), home_in(folder)
        words = [program, "--print", "--output-format", "stream-json", "--verbose", "--no-session-persistence"]
        words += ["--permission-mode", "bypassPermissions"]
        if self.tools != "default":
            words += ["--bare", "--tools", self.tools]
        if self.max_turns is not None:
            words += ["--max-turns", str(self.max_turns)]
        words += ["--", prompt]
        environment = {
            **home_variables(home),
            **QUIET,
            "ANTHROPIC_BASE_URL": anthropic_url,
            "ANTHROPIC_API_KEY": secret,  # the only key that it takes with --bare
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_OPUS_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_SONNET_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_SUBAGENT_MODEL": MODEL,
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "CLAUDE_CODE_TMPDIR": str(home / "tmp"),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self.max_output_tokens),
            "CLAUDE_CODE_MAX_RETRIES": "0",  # the gateway itself waits for servers; what it refuses stays refused
            "IS_SANDBOX": "1",  # without it root may not bypass permissions
        }
        if not self.thinks:
            environment["CLAUDE_CODE_DISABLE_THINKING"] = "1"
        return Command(words=words, folder=folder, environment=environment, files=home_files(home))

    def outcome(self, end: CommandEnd) -> Outcome:
        """The outcome, by the last event of its output."""
        results = [event for event in events_of(end.stdout) if event.get("type") == "result"]
        if not results:
            return silent_end(end)
        answer, kind = str(results[-1].get("result") or ""), str(results[-1].get("subtype") or "")
        if end.exit_code == 0 and kind == "success" and not results[-1].get("is_error"):
            return Outcome(ended_well=True, answer=answer)
        return Outcome(ended_well=False, reason=f"{kind}: {answer}"[:REASON_CHARACTERS], answer=answer)
