"""Search tools that ask a retrieval service (`vime/retrieval`).

POST /retrieve {"queries": [text], "topk": k} -> {"result": [[{"document": {"id", "title", "text"}, "score": number}]]}
"""

from typing import Any

from agentic.agentflow.tools.config import ToolConfig
from agentic.agentflow.tools.service import Service
from agentic.agentflow.tools.tool import Tool, seconds_of
from vime.config import RunConfig
from vime.errors import Problem, ServerError
from vime.rollout.context import Context

MAX_CHARACTERS = 1500
"""Most characters of one document in an answer."""
REFUSALS = (400, 413, 422)
"""HTTP statuses with which the service refuses a query."""


class Search(Tool):
    """Returns the best documents for a query, best first."""

    deterministic = True

    def __init__(self, config: ToolConfig, run: RunConfig) -> None:
        super().__init__(config, run)
        self.service = Service()

    async def execute(self, context: Context, query: str) -> str:
        """Title and text of up to `topk` documents.

        Raises ValueError for a query that is empty or refused, ServerError if the service does not answer with documents.
        """
        if not query.strip():
            raise ValueError("the query is empty: say what to look for")
        assert self.config.endpoint is not None, "checked by problems()"
        answer = await self.service.post(
            f"{self.config.endpoint.rstrip('/')}/retrieve",
            {"queries": [query], "topk": self.config.topk},
            headers={},
            seconds=seconds_of(self.config, context),
            refusals=REFUSALS,
        )
        try:
            documents = [found["document"] for found in answer["result"][0]]
            return "\n\n".join(map(_paragraph, documents[: self.config.topk], range(1, len(documents) + 1))) or "(nothing found)"
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServerError(f"{self.name}: the service's answer has no documents ({type(error).__name__}: {error})") from error

    @classmethod
    def problems(cls, key: str, config: ToolConfig, run: RunConfig) -> list[Problem]:
        """Checks the service's address and the number of documents."""
        return endpoint_problems(key, config)


class WikipediaSearch(Search):
    """Search over an index of Wikipedia."""

    name = "wikipedia_search"
    title = "Wikipedia_Knowledge_Searcher_Tool"
    description = (
        "Finds passages of Wikipedia about people, places, works and events. Ask with names and key words, one fact at a time; "
        "it does not reason over what it finds."
    )
    demo_commands = ('execution = tool.execute(query="""birthplace of Marie Curie""")',)


class WebSearch(Search):
    """Search over an index of web pages."""

    name = "web_search"
    title = "Web_RAG_Search_Tool"
    description = (
        "Finds passages of web pages for a question or key words. Good for recent or special knowledge; what it finds may be "
        "wrong."
    )
    demo_commands = ('execution = tool.execute(query="""opening year of the Gotthard base tunnel""")',)


def endpoint_problems(key: str, config: ToolConfig) -> list[Problem]:
    """Checks that the endpoint is an HTTP address and that a search returns at least one document."""
    problems = []
    if config.endpoint is None or not config.endpoint.startswith(("http://", "https://")):
        remedy = "the tool asks a service: set its address, like http://127.0.0.1:8300 (python -m vime.retrieval starts one)"
        problems.append(Problem(key=f"{key}.endpoint", value=config.endpoint, remedy=remedy))
    if config.topk < 1:
        problems.append(Problem(key=f"{key}.topk", value=config.topk, remedy="use at least 1"))
    return problems


def _paragraph(document: dict[str, Any], number: int) -> str:
    title, text = str(document.get("title") or "").strip(), str(document["text"]).strip()
    return f"[{number}] {title}\n{text[:MAX_CHARACTERS]}" if title else f"[{number}] {text[:MAX_CHARACTERS]}"
