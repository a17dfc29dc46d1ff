"""The rollout: an unchanged agent of Strands in a workspace, where its Python tool can harm nothing, and its session outside."""

import json
import os
from pathlib import Path

from agentic import integrations
from agentic.retool.config import ReToolConfig
from vime.errors import SampleError
from vime.rollout.context import Context, Sampling
from vime.surroundings import cache_folder
from vime.types import Sample, StopReason

AGENT = Path(__file__).with_name("agent.py")
PROVIDER = Path(integrations.__file__).parent
SOURCE = {"agent.py": AGENT.read_text(encoding="utf-8")}
PYTHON = "VIME_STRANDS_PYTHON"
"""The variable that names the interpreter of an environment with Strands; the default is that of `tools/clients.py`."""
DEFAULT_PYTHON = cache_folder("clients") / "strands-agents-1.62.0/bin/python"
ENDINGS = {
    "turn_limit": StopReason.TURN_LIMIT,
    "ContextWindowOverflowException": StopReason.TOKEN_LIMIT,
    "MaxTokensReachedException": StopReason.TOKEN_LIMIT,
}
ERROR_CHARACTERS = 2_000


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """The sequences of one agent, with the turns in which it used its tool as `calls`, for ReTool's reward.

    Raises SampleError if the agent ended in an error that is not its session's end; the rollout is then run again.
    """
    method = ReToolConfig.of(context.config)
    python = Path(os.environ.get(PYTHON, DEFAULT_PYTHON))
    folder = str(python.parents[1])
    binds = {folder: folder, str(PROVIDER): "/opt/agent/agentic/integrations"}
    async with (
        context.workspace(await context.prepared(SOURCE), binds=binds) as box,
        context.session() as session,
        context.reachable(session, box) as url,
    ):
        environment = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": session.secret,
            "PYTHONPATH": "/opt/agent",
            "MOST_TURNS": str(method.max_calls),
            "TOOL_SECONDS": str(method.call_seconds),
        }
        seconds = context.config.rollout.generate_timeout_seconds
        stdin = sample.question.encode(errors="replace")
        end = await box.run([str(python), "agent.py"], seconds=seconds, stdin=stdin, environment=environment, queues=False)
    if end.exit_code and session.stop_reason is StopReason.ANSWERED:
        words = (end.stderr or end.stdout).strip()[-ERROR_CHARACTERS:]
        raise SampleError(f"the agent of Strands ended with status {end.exit_code} ({end.reason}): {words}")
    said = {"ending": "", "turns": 0} if end.exit_code else json.loads(end.stdout)
    samples = session.samples(sample, calls={"finished": said["turns"]})
    samples[-1].stop_reason = ENDINGS.get(said["ending"], session.stop_reason)
    return samples
