"""The start of Claude Code and Codex, and the reading of their ends; neither has to be installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from vime.agent.command import CommandEnd
from vime.agent.harness import versions
from vime.agent.harness.claude_code import ClaudeCode
from vime.agent.harness.codex import Codex
from vime.agent.harness.outcome import Harness
from vime.agent.harness.versions import CLAUDE_CODE, CODEX, Pinned
from vime.errors import ConfigError

ASKED: dict[str, Any] = {"openai_url": "http://127.0.0.1:1/s/x/v1", "anthropic_url": "http://127.0.0.1:1/s/x", "secret": "x"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "FOLDER", tmp_path / "agents")
    for pinned in versions.PINNED:
        pinned.program.parent.mkdir(parents=True)
        pinned.program.touch()


def ended(*events: dict[str, Any], exit_code: int = 0, stderr: str = "") -> CommandEnd:
    return CommandEnd(exit_code=exit_code, stdout="\n".join(["{torn", *map(json.dumps, events), "text"]), stderr=stderr)


def test_claude_code_is_told_its_task_its_tools_and_where_its_model_is(installed: None, tmp_path: Path):
    command = ClaudeCode(tools="Bash,Edit", max_turns=3).command("-fix it", **ASKED, folder=tmp_path)
    assert command.words[0] == str(CLAUDE_CODE.program) and command.words[-2:] == ["--", "-fix it"]
    assert " --bare --tools Bash,Edit --max-turns 3 " in " ".join(command.words)
    variables = command.environment
    assert (variables["ANTHROPIC_BASE_URL"], variables["ANTHROPIC_API_KEY"]) == (ASKED["anthropic_url"], "x")
    assert len({value for name, value in variables.items() if name.endswith("_MODEL")}) == 1
    assert command.folder == tmp_path and variables["CLAUDE_CODE_DISABLE_THINKING"] == "1"
    everything = ClaudeCode(tools="default", thinks=True).command("fix it", **ASKED, folder=tmp_path)
    assert "--bare" not in everything.words and "CLAUDE_CODE_DISABLE_THINKING" not in everything.environment


def test_codex_finds_its_model_in_its_settings(installed: None, tmp_path: Path):
    command = Codex(context_window=9000).command("-fix it", **ASKED, folder=tmp_path)
    assert command.words[:2] == [str(CODEX.program), "exec"] and command.words[-2:] == ["--", "-fix it"]
    settings = command.files[f"{command.environment['CODEX_HOME']}/config.toml"]
    assert f'base_url = "{ASKED["openai_url"]}"\n' in settings and "model_context_window = 9000\n" in settings
    assert 'wire_api = "responses"' in settings
    assert command.environment["SESSION_KEY"] == "x" and 'env_key = "SESSION_KEY"' in settings


@pytest.mark.parametrize("harness", [ClaudeCode(), Codex()])
def test_what_an_agent_writes_for_itself_is_in_a_home_that_git_does_not_see(installed: None, harness: Harness, tmp_path: Path):
    folder = tmp_path / "work"
    folder.mkdir()
    command = harness.command("fix it", **ASKED, folder=folder)
    home = folder / ".agent_home"
    assert command.files[str(home / ".gitignore")] == "*\n" and not list(folder.iterdir())
    assert all(Path(path).is_relative_to(home) for path in command.files)
    names = [name for name in command.environment if name.startswith("XDG_") or name.endswith(("HOME", "TMPDIR", "CONFIG_DIR"))]
    assert {"HOME", "TMPDIR", "XDG_CONFIG_HOME"} <= set(names)
    assert all(Path(command.environment[name]).is_relative_to(home) for name in names)


@pytest.mark.parametrize(("harness", "pinned"), [(ClaudeCode(), CLAUDE_CODE), (Codex(), CODEX)])
def test_a_program_that_is_not_installed_is_named_with_the_remedy(
    harness: Harness, pinned: Pinned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(versions, "FOLDER", tmp_path / "agents")
    with pytest.raises(ConfigError, match=f"{pinned.name}=.*is not installed in version {pinned.version}: run `make agents`"):
        harness.command("fix it", **ASKED, folder=tmp_path)


def test_the_end_of_claude_code_is_its_last_result():
    harness = ClaudeCode()
    done = {"type": "result", "subtype": "success", "is_error": False, "result": "It is fixed."}
    found = harness.outcome(ended({"type": "system"}, done))
    assert found.ended_well and found.answer == "It is fixed." and not found.reason
    assert not harness.outcome(ended(done, exit_code=1)).ended_well
    wrong = harness.outcome(ended({**done, "is_error": True, "result": "API Error: 400 the session is over"}, exit_code=1))
    assert not wrong.ended_well and "the session is over" in wrong.reason
    limit = harness.outcome(ended({"type": "result", "subtype": "error_max_turns", "is_error": True}, exit_code=1))
    assert not limit.ended_well and limit.reason.startswith("error_max_turns")


def test_the_end_of_codex_is_its_last_turn():
    harness = Codex()
    said = {"type": "item.completed", "item": {"type": "agent_message", "text": "It is fixed."}}
    found = harness.outcome(ended({"type": "turn.started"}, said, {"type": "turn.completed", "usage": {}}))
    assert found.ended_well and found.answer == "It is fixed."
    failed = {"type": "turn.failed", "error": {"message": "the session is over"}}
    wrong = harness.outcome(ended(said, failed, exit_code=1))
    assert not wrong.ended_well and wrong.reason == "the session is over" and wrong.answer == "It is fixed."


@pytest.mark.parametrize("harness", [ClaudeCode(), Codex()])
def test_a_program_that_breaks_says_why_in_its_errors(harness: Harness):
    found = harness.outcome(ended(exit_code=-9, stderr="out of memory\n"))
    assert not found.ended_well and found.reason == "it ended with exit code -9: out of memory"
