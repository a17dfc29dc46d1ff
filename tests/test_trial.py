"""`mode=try` on a real server: an agent is shown turn by turn, and one that raises ends with its line and without a trainer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = """
import logging

async def generate(context, sample, sampling):
    print("the agent begins")
    logging.getLogger(__name__).info("asking")
    turn = await context.models["actor"].chat(sample.prompt, max_tokens=16)
    if "broken" in sample.metadata:
        turn.text.nothing
    return sample.with_turn(turn)

async def reward(context, samples):
    return 0.25
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_broken", [False, True])
def test_one_prompt_goes_through_the_users_functions(tmp_path: Path, is_broken: bool) -> None:
    (tmp_path / "mine.py").write_text(AGENT)
    row = '{"question": "Who owns Halin?", "answer": "Boxed"' + (', "broken": 1}' if is_broken else "}")
    (tmp_path / "questions.jsonl").write_text(row + "\n")
    words = ["method.generate=mine.py:generate", "method.reward=mine.py:reward", "data.train.path=questions.jsonl"]
    command = [sys.executable, "-m", "vime.run", *words, "mode=try", f"output_dir={tmp_path / 'run'}"]
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    shown = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": path}
    )
    assert shown.returncode == int(is_broken), shown.stderr
    for text in ("user: Who owns Halin?", "the agent begins", "call 1: actor", "reply:"):
        assert text in shown.stdout
    assert "INFO vime_hook_mine" in shown.stderr and "Unclosed" not in shown.stderr
    assert ("(mine.py:9)" in shown.stdout) == is_broken == ("reward: 0.25" not in shown.stdout)
    assert (
        not list((tmp_path / "run" / "logs").glob("trainer*")) and (tmp_path / "run" / "rollouts" / "step_000000.jsonl").exists()
    )
