"""Answers questions with an agent, one line of JSON each, until its input ends: `serve.py MODULE`."""

import importlib
import json
import os
import sys
from typing import Any


def answer(agent: Any, request: dict[str, str]) -> dict[str, str]:
    """The agent's answer, or its error. It finds its model as any program does, by the variables of OpenAI's SDK."""
    os.environ |= {"OPENAI_BASE_URL": request["url"], "OPENAI_API_KEY": request["key"]}
    try:
        return {"answer": agent.answer(request["question"])}
    except Exception as error:  # an agent is whatever its author wrote
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    replies, sys.stdout = sys.stdout, sys.stderr
    module = importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        replies.write(json.dumps(answer(module, json.loads(line))) + "\n")
        replies.flush()
