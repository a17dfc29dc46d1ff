"""Runs a Python program in a sandbox: the query itself, or a program that a coder model writes for the query."""

import ast
import re

from agentic.agentflow.tools.config import ToolConfig
from agentic.agentflow.tools.tool import Tool, model_problems
from vime.agent.sandbox import Sandbox, sandbox_problem
from vime.config import Mode, RunConfig
from vime.errors import Problem
from vime.rollout.context import Context
from vime.rollout.tool import run_sandbox

MAX_CODE_CHARACTERS = 50_000
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_PROMPT = """Write one complete Python program that solves the task below.
Rules:
- Use the standard library, and sympy or numpy where they help; there is no network, no input, and there are no files.
- Compute the answer, do not write it down from memory.
- End with print(...) of the answer.
- Reply with the program alone, in one block that starts with ```python and ends with ```.

Task: {query}"""
_SIGNS_OF_CODE = (ast.Call, ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.BinOp, ast.FunctionDef, ast.For, ast.While)


class PythonCoder(Tool):
    """Runs programs within the limits of `sandbox.*`."""

    name = "python_coder"
    title = "Python_Code_Generator_Tool"
    description = (
        "Computes by running a Python program and returns what it prints. Good for arithmetic, counting, search over cases, "
        "equations and dates; it has no network and no files."
    )
    demo_commands = ('execution = tool.execute(query="""Find the sum of all primes below 100.""")',)

    def __init__(self, config: ToolConfig, run: RunConfig) -> None:
        super().__init__(config, run)
        self.deterministic = config.model is None  # a coder samples a new program each time
        self._sandbox = Sandbox(run.sandbox)

    async def execute(self, context: Context, query: str) -> str:
        """The program's output, and how it ended unless it finished normally.

        Raises ValueError if the coder wrote no program.
        """
        code = query if self.config.model is None or is_program(query) else await self._write(context, query)
        if len(code) > MAX_CODE_CHARACTERS:
            raise ValueError(f"a program of {len(code)} characters is too long: give at most {MAX_CODE_CHARACTERS}")
        result = await run_sandbox(context, self.name, self._sandbox.run, code)
        context.trace.count(f"sandbox_{result.reason}")
        return result.text()

    async def _write(self, context: Context, query: str) -> str:
        assert self.config.model is not None
        prompt = str(self.config.options.get("prompt", _PROMPT)).format(query=query)
        turn = await context.models[self.config.model].untrained.chat(
            [{"role": "user", "content": prompt}], max_tokens=self.config.max_tokens
        )
        blocks = _FENCE.findall(turn.text)
        if blocks:
            return max(blocks, key=len)
        if is_program(turn.text):
            return turn.text
        raise ValueError("the coder wrote no Python program")

    @classmethod
    def problems(cls, key: str, config: ToolConfig, run: RunConfig) -> list[Problem]:
        """Checks that the coder, if one is named, is served, and that sandboxes can run here (except with `mode=plan`)."""
        problems = model_problems(key, config, run, required=False)
        if run.mode is not Mode.plan and not run.sandbox.allow_unsandboxed and (problem := sandbox_problem()):
            problems.append(Problem(key=key, value=cls.name, remedy=problem))
        return problems


def is_program(text: str) -> bool:
    """True if a text is a Python program; a list of words alone is not, although Python can parse it as names."""
    if len(text) > MAX_CODE_CHARACTERS:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, _SIGNS_OF_CODE) for node in ast.walk(tree))
