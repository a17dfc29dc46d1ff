"""Pages of MiniWoB (arXiv 1802.08802) in a browser, for a bridge; this file runs in a Python with `playwright` and `miniwob`.

The agent reads a page as text and names one action a turn:

    user       Click button ONE.
               1 button "ONE"
               2 button "TWO"
    assistant  click 1

Of the package `miniwob` only the pages are used (`pip install --no-deps miniwob`). Pages of your own take its protocol: they set
`genProblem`, and load its `core.js`.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from playwright.async_api import Error, async_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
INSTRUCTIONS = """You use a web page. Reply with one action:
click NUMBER
type NUMBER TEXT
select NUMBER OPTION"""
ACTION_SECONDS = 2.0
REPLY_SECONDS = 24 * 3600.0
"""Most time of a reply; the rollout's own limit comes before it."""
NO_LIMIT = 2**31 - 1
"""Milliseconds of a page's own time limit, the longest that browsers have: servers that are slow are not the agent's fault."""
SETTLE_SECONDS = 0.05
"""Wait after an action, in which a page reacts to it."""
LIST = """() => {
  const shown = element => {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    return box.width > 0 && box.height > 0 && style.visibility !== "hidden" && style.display !== "none";
  };
  const fields = new Set(["BUTTON", "INPUT", "TEXTAREA", "SELECT", "A"]);
  const found = [];
  for (const old of document.querySelectorAll("[data-number]")) old.removeAttribute("data-number");
  for (const element of document.querySelectorAll("#area *")) {
    const own = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.textContent).join(" ");
    const text = own.replace(/\\s+/g, " ").trim();
    if (!shown(element) || element.tagName === "OPTION" || !(fields.has(element.tagName) || text || element.onclick)) continue;
    const type = element.tagName === "INPUT" ? element.type : "";
    const options = element.tagName === "SELECT" ? [...element.options].map(option => option.text) : [];
    const state = type === "checkbox" || type === "radio" ? (element.checked ? "checked" : "not checked") : element.value ?? "";
    element.setAttribute("data-number", found.length + 1);
    found.push({ kind: type || element.tagName.toLowerCase(), text, state: String(state), options });
  }
  return found;
}"""
"""Numbers the visible elements of a page in its order, and describes them."""
STATE = "() => ({ done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL })"
BEGIN = """([seed, limit]) => {
  Math.seedrandom(String(seed));
  core.EPISODE_MAX_TIME = limit;
  core.startEpisodeReal();
}"""


class Pages:
    """One task of MiniWoB, for example `Pages("click-test-2")`; a row is a seed, which draws the page."""

    def __init__(self, task, browser=None, pages=None, max_actions=8, at_once=4):
        """`browser` is the path of a Chromium, `pages` a folder with TASK.html in place of the package's.

        `max_actions` replies end an episode. Raises ValueError if one of them is not there.
        """
        if pages is None:
            found = importlib.util.find_spec("miniwob")  # which is not imported: it needs more packages than its pages do
            if found is None or found.origin is None:
                raise ValueError("there are no pages: pip install --no-deps miniwob, or give the folder of your own (pages)")
            pages = os.path.join(os.path.dirname(found.origin), "html", "miniwob")
        self.page = os.path.abspath(os.path.join(pages, f"{task}.html"))
        if not os.path.isfile(self.page):
            raise ValueError(f"there is no page {self.page}")
        self.browser = browser or next(filter(None, map(shutil.which, BROWSERS)), None)
        if self.browser is None:
            raise ValueError("there is no Chromium: install the package chromium, or give its path (browser)")
        self.task, self.max_actions, self.at_once = task, max_actions, at_once
        self.threads = ThreadPoolExecutor(at_once)
        self.playwright, self.opening = None, None

    def rows(self, seed):
        """A row for each seed, without an end."""
        number = seed
        while True:
            yield {"key": f"{self.task} {number}", "seed": number}
            number += 1

    async def run(self, row, seats):
        """One page. The reward is its raw one, from -1 to 1, and 0 for a page that has not ended."""
        browser = await self._opened()
        page = await browser.new_page()
        try:
            await page.goto(f"file://{self.page}")
            await page.wait_for_function("typeof genProblem === 'function' && core.cover_div !== null")
            await page.evaluate(BEGIN, [row["seed"], NO_LIMIT])
            await page.wait_for_function("WOB_TASK_READY")
            return await self._played(page, seats["agent"])
        finally:
            await page.close()

    async def _played(self, page, seat):
        messages = [{"role": "system", "content": INSTRUCTIONS}]
        num_wrong, num_actions, said = 0, 0, ""
        while num_actions < self.max_actions:
            messages.append({"role": "user", "content": said + await self._seen(page)})
            reply = await self._asked(seat, messages)
            messages.append({"role": "assistant", "content": reply})
            num_actions += 1
            said = await _done(page, reply)
            num_wrong += bool(said)
            await asyncio.sleep(SETTLE_SECONDS)
            state = await page.evaluate(STATE)
            if state["done"]:
                metrics = {"solved": float(state["reward"] > 0), "wrong_actions": num_wrong / num_actions}
                return {"rewards": float(state["reward"]), "metrics": metrics}
        metrics = {"solved": 0.0, "wrong_actions": num_wrong / num_actions}
        return {"rewards": 0.0, "metrics": metrics, "end": "turn_limit"}

    async def _seen(self, page):
        """The task and the elements of the page, as text."""
        lines = [str(await page.evaluate("core.getUtterance().utterance ?? core.getUtterance()"))]
        for number, element in enumerate(await page.evaluate(LIST), 1):
            about = [element["kind"], json.dumps(element["text"], ensure_ascii=False) if element["text"] else ""]
            about += [f"= {json.dumps(element['state'], ensure_ascii=False)}" if element["state"] else ""]
            about += [f"of {', '.join(element['options'])}" if element["options"] else ""]
            lines.append(" ".join([str(number), *filter(None, about)]))
        return "\n".join(lines)

    async def _asked(self, seat, messages):
        """The reply of the seat's model."""
        body = {"model": seat.model, "messages": messages, "max_tokens": seat.max_tokens}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {seat.api_key}"}
        request = urllib.request.Request(f"{seat.base_url}/chat/completions", json.dumps(body).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def call():
            with opener.open(request, timeout=REPLY_SECONDS) as answer:
                return json.load(answer)

        answer = await asyncio.get_running_loop().run_in_executor(self.threads, call)
        return answer["choices"][0]["message"]["content"] or ""

    async def _opened(self):
        """The browser of this process, started with the first page and again if it is gone."""
        if self.opening is not None and self.opening.done():
            started = self.opening
            if started.exception() is not None or not started.result().is_connected():
                self.opening = None
        if self.opening is None:
            self.opening = asyncio.ensure_future(self._start())
        return await asyncio.shield(self.opening)

    async def _start(self):
        self.playwright = self.playwright or await async_playwright().start()
        return await self.playwright.chromium.launch(executable_path=self.browser, args=["--no-sandbox", "--disable-gpu"])


async def _done(page, reply):
    """Does the action of a reply; returns what was wrong with it, or an empty text."""
    verb, _, rest = reply.strip().splitlines()[0].partition(" ") if reply.strip() else ("", "", "")
    number, _, text = rest.strip().partition(" ")
    if verb not in ("click", "type", "select") or not number.isdecimal():
        return "That is no action.\n"
    element = page.locator(f'[data-number="{int(number)}"]')
    if not await element.count():
        return f"There is no element {number}.\n"
    try:
        if verb == "click":
            await element.click(timeout=1000 * ACTION_SECONDS, force=True)
        elif verb == "type":
            await element.fill(text, timeout=1000 * ACTION_SECONDS)
        else:
            await element.select_option(label=text, timeout=1000 * ACTION_SECONDS)
    except Error as error:
        return f"That did not work: {str(error).splitlines()[0]}\n"
    return ""
