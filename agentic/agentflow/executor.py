"""The executor: turns a sub-goal into a command, and the command into a tool call.

A command is a line like `execution = tool.execute(query=\"\"\"…\"\"\")`. It is parsed and never executed: only the string
constant of `query` is used.
"""

import ast
import re
import warnings

from agentic.agentflow.planner import NextStep
from agentic.agentflow.roles import Role, Roles

NO_COMMAND = "No command found."
NOT_UNDERSTOOD = 'Command parse error: write execution = tool.execute(query="""…""").'
MAX_COMMAND_CHARACTERS = 20_000
"""Longer text is not parsed as a command."""
_MARKER = "Generated Command:"
_FENCE = "```"
_LANGUAGES = ("python", "py")
_CALL = "tool.execute("
_TRIPLE = re.compile(r"query\s*=\s*(?:\"\"\"(.*?)\"\"\"|'''(.*?)''')", re.DOTALL)
_SINGLE = re.compile(r"query\s*=\s*(?:\"([^\"\n]*)\"|'([^'\n]*)')")


async def write_command(roles: Roles, question: str, choice: NextStep, *, tool: str) -> str:
    """Asks the executor for the command that calls a tool for the sub-goal, and reads it from the reply."""
    content = roles.prompts.executor.format(
        question=question,
        sub_goal=choice.sub_goal,
        tool_name=tool,
        tool=roles.toolbox[tool],
        facts=choice.context,
    )
    return find_command((await roles.ask(Role.executor, content)).text)


def find_command(reply: str) -> str:
    """The command in a reply: the fenced block after "Generated Command:", else the longest fenced block of Python, else the
    text from `execution = tool.execute(` on; `NO_COMMAND` if the reply has none of these."""
    after = reply.rsplit(_MARKER, 1)
    if len(after) == 2 and (blocks := _fenced(after[1])):
        return blocks[0][1]
    python = [block for language, block in _fenced(reply) if language in _LANGUAGES]
    if python:
        return max(python, key=len)
    start = reply.find(_CALL)
    if start < 0:
        return NO_COMMAND
    line = reply.rfind("\n", 0, start) + 1
    return reply[line:].replace(_FENCE, "").strip()


def query_of(command: str) -> str | None:
    """The query of a command, or None if it cannot be read.

    The command is parsed as Python first, and its last call `tool.execute(query="…")` is used. If that fails, the query is the
    text in quotes after `query=`.
    """
    if len(command) > MAX_COMMAND_CHARACTERS or _CALL not in command:
        return None
    query = _query_in_syntax(command)
    if query is None:
        query = _query_in_quotes(command)
    return query.strip() if query is not None and query.strip() else None


def _fenced(text: str) -> list[tuple[str, str]]:
    """Language and content of each closed block between code fences."""
    pieces = text.split(_FENCE)
    blocks = []
    for piece in pieces[1 : len(pieces) - 1 : 2]:
        language, newline, body = piece.partition("\n")
        if not newline or " " in language.strip():
            language, body = "", piece
        blocks.append((language.strip().lower(), body.strip()))
    return [(language, body) for language, body in blocks if body]


def _query_in_syntax(command: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know: the text is a model's
            tree = ast.parse(command)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what the parser raises for text that is no Python
        return None
    found = None
    for statement in tree.body:
        call = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
        if isinstance(call, ast.Call) and _is_execute(call.func):
            queries = [keyword.value for keyword in call.keywords if keyword.arg == "query"]
            constants = [value.value for value in [*queries, *call.args[:1]] if isinstance(value, ast.Constant)]
            if constants and isinstance(constants[0], (str, int, float)):
                found = str(constants[0])
    return found


def _is_execute(function: ast.expr) -> bool:
    """True if a called expression is `tool.execute`."""
    name = function.value if isinstance(function, ast.Attribute) and function.attr == "execute" else None
    return isinstance(name, ast.Name) and name.id == "tool"


def _query_in_quotes(command: str) -> str | None:
    for pattern in (_TRIPLE, _SINGLE):
        found = pattern.findall(command)
        if found:
            return next((text for text in found[-1] if text), None)
    return None
