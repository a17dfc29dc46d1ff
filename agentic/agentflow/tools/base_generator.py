"""A tool whose query a model answers directly; it is also called in place of unknown tools."""

from agentic.agentflow.tools.config import ToolConfig
from agentic.agentflow.tools.tool import Tool, model_problems
from vime.config import RunConfig
from vime.errors import Problem
from vime.rollout.context import Context


class BaseGenerator(Tool):
    """Asks a served model, once and without tools."""

    name = "base_generator"
    title = "Generalist_Solution_Generator_Tool"
    description = (
        "A general assistant that answers a question step by step from what it knows and what the question says. Good for "
        "reasoning, explaining and summarizing; it looks nothing up and may be wrong about facts and long calculations."
    )
    demo_commands = ('execution = tool.execute(query="""Summarize in one sentence: …""")',)

    async def execute(self, context: Context, query: str) -> str:
        """The model's reply to the query."""
        assert self.config.model is not None, "checked by problems()"
        turn = await context.models[self.config.model].untrained.chat(
            [{"role": "user", "content": query}], max_tokens=self.config.max_tokens
        )
        return turn.text.strip()

    @classmethod
    def problems(cls, key: str, config: ToolConfig, run: RunConfig) -> list[Problem]:
        """Checks that a model is named and served."""
        return model_problems(key, config, run)
