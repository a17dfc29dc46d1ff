"""A program whose actor is lost gets another one, which launches it again, as often as its restarts allow."""

import asyncio
import uuid
from pathlib import Path

import psutil

from tests.processes.stub_program import spec
from vime.cluster.nodes import Nodes
from vime.cluster.placement import Place
from vime.config import RunConfig
from vime.processes.kept import KeptProgram


async def lose_actor(program: KeptProgram) -> None:
    """Kills the process of a program's actor."""
    actor = psutil.Process(await program.actor.pid.remote()).parent()
    assert actor is not None
    actor.kill()


async def events_until(program: KeptProgram, last: str) -> list[str]:
    """The events up to one of a kind."""
    events: list[str] = []
    while last not in events:
        events += [event["event"] for event in await program.events()]
        await asyncio.sleep(0.1)
    return events


async def test_a_lost_actor_is_made_again_until_its_restarts_are_used_up(unused_tcp_port: int, tmp_path: Path, ray_cluster: None):
    nodes = Nodes(RunConfig())
    nodes.reserve()
    wanted = spec(unused_tcp_port, tmp_path, max_restarts=1)
    program = KeptProgram(wanted, place=Place(node=0), nodes=nodes, run_id=uuid.uuid4().hex[:8])
    program.create_actor()
    program.launch()
    await program.ready(120)
    watching = asyncio.create_task(program.watch())
    try:
        await lose_actor(program)
        assert await asyncio.wait_for(events_until(program, "recovered"), 120) == ["lost", "recovered"]
        assert program.url == wanted.url and program.lost == ""
        await lose_actor(program)
        assert await asyncio.wait_for(events_until(program, "gave_up"), 120) == ["lost", "gave_up"]
        await asyncio.wait_for(watching, 60)
        assert program.lost.startswith("actor-0: ") and "serving.max_restarts" in program.lost
    finally:
        watching.cancel()
        await program.stop()
