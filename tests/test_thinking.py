"""The end of a reply's thinking, for all code that reads replies."""

import pytest

from agentic.agentflow.planner import NextStep, parse_next_step
from agentic.agentflow.verifier import parse_verdict
from agentic.memagent.reward import score as score_of_memagent
from agentic.multi_agent.generate import solution_of
from agentic.multi_agent.reward import answer_of as box_of_solution
from agentic.search_r1.generate import action_of
from agentic.toolorchestra.prompts import answer_of, program_of, tagged
from agentic.toolorchestra.tool_calls import _split_thinking
from vime.grading.answer import answer_of as graded_answer
from vime.thinking import after_thinking, opens_thinking

CUT = ["<think>{}", "<think>a</think>b<think>{}", "<think>\n{}\n", "Sure. <think>I say {} and", "a</think><think>{}<think>"]
"""Replies that were cut within a thinking."""
STEP = "Context: 1\nSub-Goal: 2\nTool Name: Python_Coder"


@pytest.mark.parametrize(
    ("reply", "thinks", "rest"),
    [
        ("7", False, "7"),
        ("<think>6</think>7", False, "7"),
        ("<think>5</think>6<think>6</think>7", False, "7"),
        ("6</think>7", False, "7"),
        ("6</think>7", True, "7"),
        ("7", True, ""),
        ("<think>7", False, ""),
        ("<think>7", True, ""),
        ("<think>6</think>7<think>8", False, ""),
        ("</think>", False, ""),
        ("", False, ""),
    ],
)
def test_a_reply_says_what_stands_behind_its_last_thinking(reply: str, thinks: bool, rest: str):
    assert after_thinking(reply, thinks=thinks) == rest


@pytest.mark.parametrize(("prompt", "opens"), [("<|assistant|>\n<think>\n", True), ("<think>", True), ("<think></think>", False)])
def test_a_prompt_may_open_the_thinking(prompt: str, opens: bool):
    assert opens_thinking(prompt) is opens and not opens_thinking("")


@pytest.mark.parametrize("cut", CUT)
def test_no_reader_finds_anything_in_a_thinking_that_is_not_closed(cut: str):
    assert graded_answer(cut.format(r"\boxed{7}")) == ""
    assert box_of_solution(cut.format(r"\boxed{7}"), thinking=False) is None
    assert solution_of(cut.format("7"), thinking=False) is None
    assert action_of(cut.format("<search>who</search>")) == action_of(cut.format("<answer>7</answer>")) == (None, "")
    assert answer_of(cut.format("<answer>7</answer>")) is answer_of(cut.format("Final answer: 7")) is None
    assert tagged(cut.format("<query>7</query>"), "query") is program_of(cut.format("```python\n7\n```")) is None
    assert parse_next_step(cut.format(STEP)) == NextStep()
    assert not parse_verdict(cut.format("Conclusion: STOP")).parsed


def test_readers_find_what_stands_behind_the_thinking():
    reply = "<think>{}</think>\n{}"
    assert graded_answer(reply.format(r"\boxed{6}", r"\boxed{7}")) == box_of_solution(
        reply.format(r"\boxed{6}", r"\boxed{7}"), thinking=True
    )
    assert action_of(reply.format("<search>x</search>", "<answer>7</answer>")) == ("answer", "7")
    assert answer_of(reply.format("<answer>6</answer>", "<answer>7</answer>")) == "7"
    assert parse_next_step(reply.format("Tool Name: Other", STEP)).tool_name == "Python_Coder"
    assert parse_verdict(reply.format("Conclusion: STOP", "Conclusion: CONTINUE")).stop is False
    assert _split_thinking("<think>a</think><think>b</think> c", starts_thinking=False) == ("a\nb", " c")
    assert _split_thinking("<think>a</think><think>b", starts_thinking=False) == ("a\nb", "")
    assert score_of_memagent(after_thinking(reply.format(r"\boxed{x}", r"\boxed{y}")), ["y"]).score == 1.0
