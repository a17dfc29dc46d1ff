"""A page in a real browser behind the bridge: an agent reads it as text and acts; a browser that dies costs nothing."""

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.environments.test_bridge import processes_of
from tests.environments.test_play import played
from vime.environments.bridge import Bridge
from vime.environments.environment import load_environment
from vime.environments.harness import run_harness
from vime.errors import ConfigError
from vime.types import StopReason

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium"),
]

PAGE = """<!DOCTYPE html>
<html><body><div id="query">Write <b>WORD</b>, choose red, and press Send.</div>
<div id="area"><input type="text" id="word"><select id="colour"><option>blue</option><option>red</option></select>
<button onclick="core.end()">Send</button><button style="display: none">Hidden</button></div>
<script>
let WOB_DONE_GLOBAL = false, WOB_RAW_REWARD_GLOBAL = 0;
const WOB_TASK_READY = true;
let word = "";
Math.seedrandom = seed => { word = "w" + seed; };
const core = {
  cover_div: document.body,
  getUtterance: () => document.getElementById("query").textContent,
  startEpisodeReal: () => genProblem(),
  end: () => {
    const right = document.getElementById("word").value === word && document.getElementById("colour").value === "red";
    WOB_RAW_REWARD_GLOBAL = right ? 1 : -1;
    WOB_DONE_GLOBAL = true;
  },
};
function genProblem() { document.querySelector("b").textContent = word; }
</script></body></html>
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "form.html").write_text(PAGE)
    found = load_environment("miniwob.form", {"python": sys.executable, "pages": str(folder), "max_actions": 4})
    yield found
    running = processes_of(found)
    assert any("chromium" in process.name() or "chrome" in process.name() for process in running)
    found.close()
    _, alive = psutil.wait_procs(running, timeout=30)
    assert not alive, "no browser outlives its environment"


async def used(tokenizer: Any, pages: Bridge, replies: list[str]) -> Any:
    return await played(tokenizer, pages, replies, episode=run_harness, row={"seed": 7}, max_turns=8)


async def test_a_page_is_read_as_text_and_used_until_it_ends(byte_tokenizer: Any, pages: Bridge):
    rollout = await used(byte_tokenizer, pages, ["type 1 w7", "select 2 red", "click 3"])
    assert not rollout.error and rollout.stop_reason is StopReason.ANSWERED
    assert (rollout.reward, rollout.metrics["solved"], rollout.metrics["wrong_actions"]) == (1.0, 1.0, 0.0)
    (sample,) = rollout.samples
    text = byte_tokenizer.decode(sample.tokens)
    for seen in (
        "Write w7, choose red",
        "1 text\n",
        '2 select = "blue" of blue, red',
        '3 button "Send"',
        '1 text = "w7"',
        '= "red"',
    ):
        assert seen in text, seen
    assert "Hidden" not in text and sample.metadata["turns"] == 3


async def test_what_is_no_action_is_said_and_an_episode_ends_after_its_actions(byte_tokenizer: Any, pages: Bridge):
    rollout = await used(byte_tokenizer, pages, ["click ²", "click 9", "select 2 green", "type 1 x"])
    assert not rollout.error and rollout.stop_reason is StopReason.TURN_LIMIT
    assert (rollout.reward, rollout.metrics["solved"], rollout.metrics["wrong_actions"]) == (0.0, 0.0, 0.75)
    text = byte_tokenizer.decode(rollout.samples[0].tokens)
    assert "That is no action." in text and "There is no element 9." in text and "That did not work:" in text
    assert (await used(byte_tokenizer, pages, ["click 3"])).reward == -1.0


async def test_a_browser_that_dies_is_started_again(byte_tokenizer: Any, pages: Bridge):
    assert (await used(byte_tokenizer, pages, ["click 3"])).reward == -1.0
    browser = next(
        process
        for process in processes_of(pages)
        if "--no-sandbox" in process.cmdline() and "--type" not in str(process.cmdline())
    )
    browser.kill()
    browser.wait(30)
    rollout = await used(byte_tokenizer, pages, ["type 1 w7", "select 2 red", "click 3"] * 2)
    assert not rollout.error and rollout.reward == 1.0


def test_a_page_that_is_not_there_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="there is no page"):
        _ = load_environment("miniwob.nothing", {"python": sys.executable, "pages": "."}).seats
