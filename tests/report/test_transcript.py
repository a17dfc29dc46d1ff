"""The screen of `mode=try`: prompt, calls, what would be trained, and the error of a hook with its place."""

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from vime.config import RolloutDetail, RunConfig
from vime.files.record import Recorder
from vime.report.transcript import SHOWN_CHARACTERS, ShownCall, Transcript
from vime.types import Group, Prompt, Rollout, Sample, Span, StopReason, Turn

PROMPT = Prompt(index=0, row=3, messages=[{"role": "user", "content": "2+2?"}], ground_truth=["4"])


def transcript(path: Path) -> tuple[Transcript, io.StringIO]:
    output = io.StringIO()
    return Transcript(RunConfig(), path, rich=RichConsole(file=output, width=120, highlight=False)), output


def show(path: Path, rollout: Rollout) -> str:
    screen, output = transcript(path)
    screen.end(Group(prompt=PROMPT, rollouts=[rollout]), Recorder(RolloutDetail.turns))
    return output.getvalue()


def test_calls_are_shown_as_they_are_answered(tmp_path: Path) -> None:
    screen, output = transcript(tmp_path)
    screen.prompt(PROMPT)
    turn = Turn(output_ids=[1, 2], finish_reason="length", seconds=0.25)
    call = ShownCall(model="actor", prompt="[/INST]", reply="four", turn=turn, num_prompt_tokens=9, num_known_tokens=5)
    screen.call(call)
    chat = Turn(usage=(30, 4), finish_reason="stop", seconds=1.0)
    call = ShownCall(model="judge", prompt="y" * 9000, reply="yes", turn=chat, num_prompt_tokens=None, num_known_tokens=0)
    screen.call(call)
    shown = output.getvalue()
    for text in ("row 3 of train", "user: 2+2?", "answer: ['4']", "… 5 tokens as in the call before", "  [/INST]", "  four"):
        assert text in shown
    assert "call 1: actor, 9 tokens read, 2 sampled, 0.2 s, cut at its limit" in shown
    assert "call 2: judge, 30 tokens read, 4 sampled, 1.0 s, ended by stop" in shown
    assert f"… {9000 - SHOWN_CHARACTERS:,} characters …" in shown


def test_the_end_shows_tools_sequences_and_reward(tmp_path: Path) -> None:
    sample = Sample(tokens=[1, 2, 3, 4], response_length=3, loss_mask=[1, 0, 1], rollout_log_probs=[0.0] * 3)
    span = Span(name="search", kind="tool", start=0.0, seconds=0.5, details={"outcome": "answered"})
    rollout = Rollout(rollout_id=0, group_index=0, samples=[sample], reward=0.5, stop_reason=StopReason.ANSWERED)
    rollout.spans, rollout.counts, rollout.metrics = [span], {"tool_calls": 1}, {"strict": 1.0}
    shown = show(tmp_path, rollout)
    for text in ("end: answered", "tool search: 0.5 s (outcome answered)", "counts: tool_calls 1", "reward: 0.5 (strict 1)"):
        assert text in shown
    assert "sequence 1: prompt 1 + reply 1 + environment 1 + reply 1 tokens" in shown


def test_a_hook_that_raises_is_shown_with_its_traceback_and_without_a_reward(tmp_path: Path) -> None:
    rollout = Rollout(rollout_id=0, group_index=0, stop_reason=StopReason.GENERATE_RAISED)
    rollout.error, rollout.traceback = "KeyError: 'x' (my_agent.py:8)", "Traceback of it"
    shown = show(tmp_path, rollout)
    assert "FAILED: generate_raised" in shown and "(my_agent.py:8)" in shown and "Traceback of it" in shown
    assert "reward:" not in shown and "no model was called" in shown


def test_what_hooks_log_is_on_the_screen_and_not_what_vime_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with transcript(tmp_path)[0]:
        logging.getLogger("my.agent").info("asking")
        logging.getLogger("vime.workers.isolation").warning("said at the end")
    assert capfd.readouterr().err == "INFO my.agent: asking\n"
    assert "said at the end" in (tmp_path / "logs" / "driver.log").read_text()
