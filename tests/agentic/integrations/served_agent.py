"""An agent for Agent Lightning's controller, version 1, with nothing but the standard library."""

import json
import os
from typing import Any
from urllib.request import Request, urlopen


class Agent:
    """Asks its model twice and reports a reward; a row that says so fails or reports nothing."""

    def run(self) -> None:
        task = json.loads(os.environ["AGL_TASK"])
        messages = [{"role": "user", "content": task["question"]}]
        for _ in range(2):
            answer = post(f"{os.environ['AGL_OPENAI_BASE_URL']}/chat/completions", {"messages": messages})
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
        if task["kind"] == "raises":
            raise RuntimeError("this agent fails")
        if task["kind"] == "good":
            post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": 0.25}})


def post(url: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['AGL_KEY']}"}
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as found:
        return json.load(found)
