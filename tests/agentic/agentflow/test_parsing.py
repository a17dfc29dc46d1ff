"""Replies of planners, executors and verifiers are read as text: every reply has a defined result and none is executed."""

import ast
import builtins
import os
import random
import subprocess

import pytest

from agentic.agentflow.executor import NO_COMMAND, find_command, query_of
from agentic.agentflow.memory import CUT_MARK, MAX_RESULT_CHARACTERS, Memory, shortened
from agentic.agentflow.planner import NextStep, parse_next_step
from agentic.agentflow.verifier import Verdict, parse_verdict

STEP = "Justification: a sum.\nContext: 3 lamps at 7\nSub-Goal: Compute 3 * 7\nTool Name: Python_Coder"
COMMAND = 'execution = tool.execute(query="""Compute 3 * 7""")'
REPLY = f"Analysis first.\n\nGenerated Command:\n```python\n{COMMAND}\n```"


def test_the_three_sections_are_read():
    assert parse_next_step(STEP) == NextStep(context="3 lamps at 7", sub_goal="Compute 3 * 7", tool_name="Python_Coder")


@pytest.mark.parametrize(
    ("reply", "tool_name"),
    [
        (STEP.replace("Python_Coder", "**Python_Coder**"), "Python_Coder"),
        (f"<think>Context: a Sub-Goal: b Tool Name: c</think>{STEP}", "Python_Coder"),
        (f"<|im_start|>user\nContext:<|im_end|>\n<|im_start|>assistant\n{STEP}<|im_end|>", "Python_Coder"),
        (f"```\n{STEP}\n```", "Python_Coder"),
        (f"{STEP}\n\nThat should do.", "Python_Coder"),
        (STEP + "\n" + STEP.replace("Python_Coder", "Base_Generator"), "Base_Generator"),
        (STEP.replace("Tool Name: ", "Tool Name:\n"), "Python_Coder"),
    ],
)
def test_thinking_marks_fences_and_repetitions_do_not_hide_the_tool(reply: str, tool_name: str):
    assert parse_next_step(reply).tool_name == tool_name


@pytest.mark.parametrize(
    "reply", ["", "Tool Name: x", "Sub-Goal: b\nTool Name: c", "Context: a\nTool Name: c", "Werkzeug: Python"]
)
def test_a_reply_without_the_sections_is_an_empty_step(reply: str):
    assert parse_next_step(reply) == NextStep() and not parse_next_step(reply).parsed


@pytest.mark.parametrize(
    "reply",
    [
        REPLY,
        f"```python\n{COMMAND}\n```",
        COMMAND,
        f"Here it is: {COMMAND}",
        f"```python\nx = 1\n```\n```python\n# the call\n{COMMAND}\n```",
        f"Generated Command:\n```\n{COMMAND}\n```",
        "Generated Command:\n```python\ntool.execute(query='Compute 3 * 7')\n```",
        'execution = tool.execute(query="""Compute 3 * 7"""',
        'execution = tool.execute(query="Compute " "3 * 7")',
        f"{COMMAND.replace('Compute', 'Forget')}\n{COMMAND}",
    ],
)
def test_the_query_of_a_command_is_found(reply: str):
    assert query_of(find_command(reply)) == "Compute 3 * 7"


@pytest.mark.parametrize(
    "reply",
    [
        "I would compute it.",
        "```python\nimport os\nos.remove('x')\n```",
        "execution = tool.execute(query=open('/etc/passwd').read())",
        "execution = tool.execute(query=f'{__import__(\"os\").getpid()}')",
        "execution = other.execute(query='x')",
        'execution = tool.execute(query="""   """)',
        "execution = tool.execute()",
    ],
)
def test_what_is_no_command_has_no_query(reply: str):
    assert query_of(find_command(reply)) is None


def test_text_without_a_call_is_no_command():
    assert find_command("nothing here") == NO_COMMAND


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Fine.\nConclusion: STOP", Verdict(stop=True, parsed=True)),
        ("Conclusion: STOP\nNo:\n**Conclusion: CONTINUE**", Verdict(stop=False, parsed=True)),
        ("conclusion stop", Verdict(stop=True, parsed=True)),
        ("All done.\nSo we stop here.", Verdict(stop=True, parsed=True)),
        ("Stop.\n1\n2\n3", Verdict(stop=False, parsed=False)),
        ("", Verdict(stop=False, parsed=False)),
    ],
)
def test_the_last_conclusion_counts_and_none_means_to_go_on(reply: str, verdict: Verdict):
    assert parse_verdict(reply) == verdict


def test_a_long_result_keeps_its_beginning_and_its_end():
    cut = shortened("a" * 5000 + "z" * 5000)
    assert len(cut) == MAX_RESULT_CHARACTERS + len(CUT_MARK) and cut[0] == "a" and cut[-1] == "z"
    assert shortened("short") == "short"


def test_the_memory_numbers_its_steps():
    memory = Memory()
    for result in ("7", "21"):
        memory.add(tool_name="T", sub_goal="s", command="c", result=result)
    assert [(name, step["result"]) for name, step in memory.actions().items()] == [
        ("Action Step 1", "7"),
        ("Action Step 2", "21"),
    ]


NUM_FUZZED = 6000
PIECES = [
    *("Context:", "Sub-Goal:", "Tool Name:", "Justification:", "Generated Command:", "Conclusion: STOP", "Conclusion: CONTINUE"),
    *(
        "```",
        "```python\n",
        "```js\n",
        "\n",
        "\n\n",
        "**",
        "<think>",
        "</think>",
        "<|im_start|>assistant",
        "<|im_end|>",
        "{}",
        "{0}",
    ),
    *(
        "execution = tool.execute(query=",
        '"""',
        "'''",
        '"',
        "'",
        ")",
        "(",
        "tool.execute(",
        "\\",
        "\x00",
        "\udcff",
        "é 漢字 😀",
        "%s",
    ),
    *("__import__('os').system('touch PLANTED')", "exec(\"open('PLANTED','w')\")", "eval('1+1')", "open('PLANTED', 'w')"),
    *("const execution = await tool.execute({query: `x`});", "def f(:\n  pass", "lambda: 0", "[" * 300, "-" * 500, "9" * 5000),
    *("raise SystemExit", "import os; os._exit(1)", STEP, COMMAND, REPLY),
]


def fuzzed(rng: random.Random) -> str:
    """A reply of the model, truncated, doubled, shuffled or mixed with other things."""
    text = rng.choice([STEP, REPLY, COMMAND, "", "".join(rng.choices(PIECES, k=rng.randint(1, 12)))])
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(text) + 1)
        change = rng.randrange(5)
        if change == 0:
            text = text[:at]
        elif change == 1:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif change == 2:
            text = text + rng.choice(["", "\n", " "]) + text
        elif change == 3:
            text = text[at:] + text[:at]
        else:
            text = f"```python\n{text}\n```"
    return text


def test_thousands_of_malformed_replies_have_a_defined_result_and_nothing_is_executed(monkeypatch, tmp_path):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a reply was executed")

    monkeypatch.chdir(tmp_path)
    for module, name in ((builtins, "exec"), (builtins, "eval"), (os, "system"), (os, "_exit"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, refuse)
    compiled = builtins.compile
    flags = []

    def only_parse(*arguments: object, **named: object):
        flags.append(named.get("flags", arguments[3] if len(arguments) > 3 else 0))
        return compiled(*arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "compile", only_parse)
    rng = random.Random(0)
    outcomes: dict[str, int] = {"step": 0, "query": 0, "stop": 0}
    for _ in range(NUM_FUZZED):
        reply = fuzzed(rng)
        step, command, verdict = parse_next_step(reply), find_command(reply), parse_verdict(reply)
        query = query_of(command)
        assert all(isinstance(part, str) for part in (step.context, step.sub_goal, step.tool_name, command))
        assert query is None or (query and isinstance(query, str))
        outcomes["step"] += step.parsed
        outcomes["query"] += query is not None
        outcomes["stop"] += verdict.stop
    assert all(0 < count < NUM_FUZZED for count in outcomes.values()), outcomes
    assert flags and all(isinstance(flag, int) and flag & ast.PyCF_ONLY_AST for flag in flags)
    assert list(tmp_path.iterdir()) == []
