"""The way of a sample is traced through calls, returns, generators, coroutines and threads; who only looks at it is not on it."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import trace_path

TOOLS = Path(trace_path.__file__).parent

FILES = {
    "__init__.py": "",
    "types.py": """
class Sample:
    tokens = [1, 2]
class Group:
    samples = []
""",
    "maker.py": """
from vime.types import Sample
async def make():
    return Sample()
""",
    "carrier.py": """
from vime import maker
async def carry():
    return [await maker.make()]
""",
    "viewer.py": """
def look(samples):
    return len(samples)
""",
    "keeper.py": """
held = []
def put(sample):
    held.append(sample)
def taken():
    yield from held
""",
    "thread.py": """
def weigh(samples):
    return {"samples": samples}
""",
    "algorithm.py": """
def policy_loss(number):
    return number
""",
    "trainer.py": """
from vime import algorithm
def train(batch):
    algorithm.policy_loss(1.0)
def spare(batch):
    return batch
""",
    "main.py": """
import asyncio
import agent
from vime import carrier, keeper, maker, thread, trainer, viewer
async def begin():
    await agent.generate("context")
async def run():
    await begin()
    samples = await carrier.carry()
    viewer.look(samples)
    keeper.put(samples[0])
    (sample,) = keeper.taken()
    trainer.train(await asyncio.to_thread(thread.weigh, [sample]))
asyncio.run(run())
""",
}


@pytest.fixture
def hand_overs(tmp_path: Path) -> Path:
    """The folder with the notes of a program in which a sample goes such a way."""
    package = tmp_path / "root" / "vime"
    package.mkdir(parents=True)
    for name, text in FILES.items():
        (package / name).write_text(text)
    (package.parent / "agent.py").write_text("async def generate(context):\n    pass\n")
    program = f"import sys; sys.path += [{str(TOOLS)!r}]; import path_probe; path_probe.install(); import vime.main"
    environment = {"VIME_TRACE_FOLDER": str(tmp_path), "VIME_TRACE_ROOT": str(package.parent)}
    subprocess.run([sys.executable, "-c", program], cwd=package.parent, env=environment, check=True)
    return tmp_path


def test_files_that_hand_a_sample_on_are_on_its_way_the_farthest_first(hand_overs: Path):
    found = trace_path.read(hand_overs)
    assert set(found) == {"sample", "frames", "form"}
    files = trace_path.way(found["sample"], trace_path.LOSS)
    assert set(files) == {"maker.py", "carrier.py", "main.py", "keeper.py", "thread.py", "trainer.py"}
    assert files.index("maker.py") < files.index("carrier.py") < files.index("main.py") < files.index("trainer.py")
    assert trace_path.way(found["weight"], trace_path.LOAD_WEIGHTS) == []
    assert trace_path.frames(found["frames"])[:2] == ["main.py:begin", "main.py:run"]
    assert {each.taker for each in found["form"]} == {"vime.types.Sample"}
