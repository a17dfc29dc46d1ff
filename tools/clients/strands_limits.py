"""Tries how an agent of Strands ends or goes on at a limit: `strands_limits.py turns|calls|context|throttled`."""

import http.client
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import task
from strands import Agent, tool  # pyright: ignore[reportMissingImports]
from strands.agent.conversation_manager import NullConversationManager  # pyright: ignore[reportMissingImports]
from strands.types.exceptions import ContextWindowOverflowException  # pyright: ignore[reportMissingImports]

from agentic.integrations.strands import LoopLimiter, SessionModel

SDK_RETRIES = 2
"""Number of retries that OpenAI's SDK makes before Strands sees a refusal."""
SESSION = urlsplit(os.environ["OPENAI_BASE_URL"])
refusals = iter(range(SDK_RETRIES + 1))


class BusyOnce(BaseHTTPRequestHandler):
    """Refuses the first requests as a server does that takes no more of them, and passes all others on to the session."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if next(refusals, None) is not None:
            self._answer(
                429, "application/json", b'{"error": {"message": "1024 requests are open", "code": "rate_limit_exceeded"}}'
            )
            return
        connection = http.client.HTTPConnection(SESSION.netloc)
        connection.request("POST", SESSION.path + self.path.removeprefix("/v1"), body, dict(self.headers))
        answer = connection.getresponse()
        self._answer(answer.status, answer.getheader("Content-Type", ""), answer.read())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Does nothing, so that requests are not logged."""


def agent_with(limiter: LoopLimiter) -> Agent:
    """The agent of the task."""
    return Agent(
        model=SessionModel(),
        tools=[tool(task.owner_of), tool(task.price_of)],
        system_prompt=task.SYSTEM,
        hooks=[limiter],
        conversation_manager=NullConversationManager(),
        callback_handler=None,
    )


def num_replies(agent: Agent) -> int:
    """Replies that the model has sampled; the last message of a limited loop is Strands' own."""
    return sum(message["role"] == "assistant" for message in agent.messages)


def main(kind: str) -> None:
    """Ends with 0 if the limit has the effect that it must have."""
    if kind == "turns":
        agent = agent_with(limiter := LoopLimiter(most_turns=2))
        result = agent(task.QUESTIONS[0])
        assert limiter.is_reached and result.stop_reason == "end_turn" and num_replies(agent) == 3, agent.messages
    elif kind == "calls":
        agent = agent_with(limiter := LoopLimiter(most_calls=1))
        agent(task.QUESTIONS[0])
        results = [block["toolResult"] for message in agent.messages for block in message["content"] if "toolResult" in block]
        assert limiter.is_reached and sorted(result["status"] for result in results) == ["error", "success"], results
    elif kind == "context":
        try:
            agent_with(LoopLimiter())(task.QUESTIONS[0])
        except ContextWindowOverflowException:
            return
        sys.exit("the context did not overflow")
    else:
        server = ThreadingHTTPServer(("127.0.0.1", 0), BusyOnce)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{server.server_address[1]}/v1"
        agent = agent_with(LoopLimiter())
        task.finish([str(agent(question)).strip() for question in task.QUESTIONS])


if __name__ == "__main__":
    main(sys.argv[1])
