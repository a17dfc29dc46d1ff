"""A method is short: its rollout, reward, settings and metrics, without prompts, readers of published data,
rehearsal and laptop task.
"""

from pathlib import Path

import pytest

AGENTIC = Path(__file__).parents[2] / "agentic"
NOT_COUNTED = {"prompts.py", "rehearsal.py", "traces.py"}


@pytest.mark.parametrize("method", ["search_r1", "retool", "multi_agent"])
def test_a_method_is_at_most_250_lines(method: str):
    modules = [path for path in sorted((AGENTIC / method).glob("*.py")) if path.name not in NOT_COUNTED]
    assert {"config.py", "generate.py", "reward.py"} <= {path.name for path in modules}
    lines = {path.name: sum("rehearsal" not in line for line in path.read_text().splitlines()) for path in modules}
    assert sum(lines.values()) <= 250, lines
