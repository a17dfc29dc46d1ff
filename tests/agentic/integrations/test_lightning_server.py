"""Agent Lightning's server and controller, version 1.0.2, as processes of their own, with sessions of a scripted model."""

import asyncio
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))

from dataclasses import replace

from client_environments import AGENT_LIGHTNING_SERVER

from agentic.integrations.lightning_server import generate
from tests.completing import context_with
from tests.gateway.scripted import Scripted, user
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.errors import SampleError
from vime.gateway.session_manager import SessionManager
from vime.preflight.compose import compose_run
from vime.rollout.context import Sampling
from vime.types import Sample

KEY = "a key"
SECONDS = 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (AGENT_LIGHTNING_SERVER.folder / "finished").exists(),
        reason="no environment with Agent Lightning's server: run `python tools/bench_agent_lightning.py --environment`",
    ),
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{found.getsockname()[1]}"
    python, port = str(AGENT_LIGHTNING_SERVER.python), url.rpartition(":")[2]
    words = ["host=127.0.0.1", f"port={port}", f"key='{KEY}'"]
    controller = ["runner_type=local", f"agl_server.url={url}", f"agl_server.key='{KEY}'", "local_runner.poll_interval=0.2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    commands = [[python, "-m", "agentlightning.server", *words], [python, "-m", "agentlightning.controller", *controller]]
    programs = [subprocess.Popen(command, cwd=tmp_path, env=environment) for command in commands]
    for name, value in {"AGL_URL": url, "AGL_KEY": KEY, "AGL_AGENT": "served_agent:Agent"}.items():
        monkeypatch.setenv(name, value)
    yield url
    for program in programs:
        program.terminate()
        program.wait(SECONDS)


async def test_rollouts_of_the_server_are_trained_exactly_and_those_without_a_reward_have_failed(server: str):
    async def is_up() -> bool:
        try:
            return await asyncio.to_thread(lambda: urllib.request.urlopen(f"{server}/healthz").status == 200)
        except urllib.error.URLError:
            return False

    while not await is_up():
        await asyncio.sleep(0.1)
    config, sessions = compose_run(["+experiment=database_tiny", "mode=plan"]).config, SessionManager()

    async def play(kind: str) -> tuple[list[Sample], Scripted]:
        model = Scripted(qwen3_tokenizer(), ["one two<|im_end|>", "three<|im_end|>"])
        context = replace(context_with({"actor": model}, config=config, sessions=sessions), session_id=f"train-{kind}-0")
        sample = Sample(prompt=[user("1?")], metadata={"kind": kind}, rollout_id=3, session_id=f"train-{kind}")
        return await generate(context, sample, Sampling(temperature=1.0, top_p=1.0)), model

    good, *failed = await asyncio.wait_for(
        asyncio.gather(play("good"), play("raises"), play("silent"), return_exceptions=True), SECONDS
    )
    await sessions.stop()
    assert isinstance(good, tuple)
    [sample], model = good
    trained = [token for token, mask in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if mask]
    assert sample.reward == 0.25 and trained == [token for turn in model.turns for token in turn.output_ids]
    assert all(isinstance(error, SampleError) for error in failed)
    assert "exited with code 1" in str(failed[0]) and "no reward" in str(failed[1])
