"""Google search through Gemini, which answers from its findings (https://ai.google.dev/gemini-api/docs/google-search)."""

import os

from agentic.agentflow.tools.config import ToolConfig
from agentic.agentflow.tools.service import Service
from agentic.agentflow.tools.tool import Tool, seconds_of
from vime.config import RunConfig
from vime.errors import Problem
from vime.rollout.context import Context

ENDPOINT = "https://generativelanguage.googleapis.com/v1beta"
KEY_VARIABLE = "GOOGLE_API_KEY"
MODEL = "gemini-2.5-flash"


class GoogleSearch(Tool):
    """Asks Gemini, which searches with Google; `options.model` chooses another Gemini model."""

    name = "google_search"
    title = "Ground_Google_Search_Tool"
    description = "Searches the web with Google and sums up what it finds. Good for recent facts; ask one whole question."
    demo_commands = ('execution = tool.execute(query="""What is the capital of France?""")',)
    deterministic = True

    def __init__(self, config: ToolConfig, run: RunConfig) -> None:
        super().__init__(config, run)
        self.service = Service()

    async def execute(self, context: Context, query: str) -> str:
        """Gemini's summary of the search results.

        Raises ValueError for an empty query, RuntimeError if the answer has no text, ServerError if the service does not answer.
        """
        if not query.strip():
            raise ValueError("the query is empty: say what to look for")
        model = self.config.options.get("model", MODEL)
        address = f"{(self.config.endpoint or ENDPOINT).rstrip('/')}/models/{model}:generateContent"
        body = {"contents": [{"role": "user", "parts": [{"text": query}]}], "tools": [{"google_search": {}}]}
        headers = {"x-goog-api-key": os.environ[self.config.key_variable or KEY_VARIABLE]}
        answer = await self.service.post(address, body, headers=headers, seconds=seconds_of(self.config, context))
        try:
            parts = answer["candidates"][0]["content"]["parts"]
            return "".join(str(part.get("text", "")) for part in parts).strip() or "(nothing found)"
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise RuntimeError(f"google_search: the answer has no text ({type(error).__name__}: {error})") from error

    @classmethod
    def problems(cls, key: str, config: ToolConfig, run: RunConfig) -> list[Problem]:
        """Checks that the API key is in the environment."""
        variable = config.key_variable or KEY_VARIABLE
        if os.environ.get(variable):
            return []
        remedy = f"needs a key: export {variable}=… before the run (on all nodes), or take the tool out"
        return [Problem(key=f"{key}.key_variable", value=variable, remedy=remedy)]
