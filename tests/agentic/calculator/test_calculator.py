"""Word problems: what is trained of a rollout, what the calculator says, how a rollout ends, and rewards."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentic.search_r1.config
from agentic.calculator import ANSWER, CALCULATION, CalculatorConfig, generate, line_of, reward, shown, single_turn
from tests.completing import context_with
from vime.chat.served_model import ServedModel
from vime.config import RunConfig
from vime.grading.arithmetic import computed
from vime.model.load_tokenizer import load_tokenizer
from vime.rollout.context import Sampling
from vime.types import Reward, Sample, StopReason, Turn

TOKENIZER = load_tokenizer(Path(agentic.search_r1.config.__file__).parent / "tiny/actor")
PROBLEM = Sample(prompt=[{"role": "user", "content": "ann had 20 nuts , ate 5 , and shared the rest among 3 ."}], label=["5"])


class Scripted:
    """A server that says one line after the other, and keeps the prompts."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.prompts = list(lines), list[list[int]]()

    async def generate(self, token_ids: Any, **_: Any) -> Turn:
        self.prompts.append(list(token_ids))
        ids = TOKENIZER.encode(self.lines.pop(0), add_special_tokens=False)
        numbers = {"logprobs": [-1.0] * len(ids), "weight_versions": [1] * len(ids)}
        return Turn(prompt_ids=list(token_ids), output_ids=ids, finish_reason="stop", message={}, **numbers)


async def solved(*lines: str, play: Any = generate, **settings: Any) -> tuple[Sample, Reward, Scripted]:
    server = Scripted(*lines)
    model = ServedModel(client=server, tokenizer=TOKENIZER, max_model_len=4096, temperature=1.0, top_p=1.0, session="s")
    config = RunConfig(method=CalculatorConfig(**settings))
    context = context_with({"actor": model}, config=config)
    sample = await play(context, replace(PROBLEM), Sampling(temperature=1.0, top_p=1.0))
    return sample, await reward(context, [sample]), server


async def test_lines_are_trained_and_the_values_between_them_are_not():
    said = ("Calculation: 20 - 5 =", "Calculation: 15 / 3 =", "Answer: 5\n")
    sample, scored, server = await solved(*said)
    assert sample.response == "Calculation: 20 - 5 = 15\nCalculation: 15 / 3 = 5\nAnswer: 5\n"
    trained = [token for token, is_trained in zip(sample.tokens[-sample.response_length :], sample.loss_mask) if is_trained]
    assert trained == [token for line in said for token in TOKENIZER.encode(line, add_special_tokens=False)]
    assert all(prompt == sample.tokens[: len(prompt)] for prompt in server.prompts), "what was sampled stays as it is"
    assert scored.score == 1.0 and scored.metrics == {"strict": 1.0, "lenient": 1.0, "calculated": 1.0, "answered": 1.0}
    assert sample.stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize(
    ("lines", "reason", "strict", "lenient"),
    [
        (("Calculation: 20 - 5 =", "Calculation: 15 / 3 =", "Calculation: 5 + 0 ="), StopReason.TURN_LIMIT, 0.0, 1.0),
        (("Calculation: 15 / 3 =", "Answer: 4\n"), StopReason.ANSWERED, 0.0, 1.0),
        (("Answer: 5\n",), StopReason.ANSWERED, 1.0, 1.0),
        (("Calculation: nuts =",), StopReason.MALFORMED, 0.0, 0.0),
        (("Calculation: 5 / 0 =",), StopReason.MALFORMED, 0.0, 0.0),
        (("I think that it is 5 .\n",), StopReason.MALFORMED, 0.0, 0.0),
        (("Answer: five\n",), StopReason.ANSWERED, 0.0, 0.0),
    ],
)
async def test_a_rollout_ends_with_its_answer_or_with_a_line_that_is_none(
    lines: tuple[str, ...], reason: StopReason, strict: float, lenient: float
):
    sample, scored, _ = await solved(*lines, max_calculations=2)
    assert (sample.stop_reason, scored.metrics["strict"], scored.metrics["lenient"]) == (reason, strict, lenient)


async def test_the_baseline_sees_answers_without_calculations():
    _, scored, server = await solved("Answer: 5\n", play=single_turn)
    prompt = TOKENIZER.decode(server.prompts[0])
    assert CALCULATION not in prompt and prompt.count(ANSWER) == 3 and scored.score == 1.0
    assert "Calculation" in TOKENIZER.decode((await solved("Answer: 5\n"))[2].prompts[0])
    assert (await solved("Answer: 5\n", max_calculations=0))[2].prompts == server.prompts


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Calculation: 4 x 3 =", (CALCULATION, "4 * 3")),
        ("Calculation: 4 × 3 =", (CALCULATION, "4 * 3")),
        ("Calculation: 4 + 3\n", (None, "")),
        ("Answer: 7\n", (ANSWER, "7")),
        ("Answer: 3 + 4 =", (None, "")),
        ("Answer:\n", (None, "")),
        ("", (None, "")),
    ],
)
def test_a_line_is_a_calculation_an_answer_or_nothing(text: str, line: tuple[str | None, str]):
    assert line_of(text) == line


@given(
    st.recursive(
        st.integers(0, 10**6).map(str),
        lambda part: st.tuples(part, st.sampled_from("+-*/"), part).map("({0[0]} {0[1]} {0[2]})".format),
        max_leaves=6,
    )
)
def test_values_are_exact(expression: str):
    try:
        value, numbers = computed(expression)
    except ValueError:
        assert "/" in expression
        return
    assert float(value) == pytest.approx(eval(expression)) and len(numbers) == sum(sign in "+-*/" for sign in expression) + 1


@pytest.mark.parametrize(
    "text", ["__import__('os')", "2 ** 9", "a + 1", "1 / 0", "(" * 150 + ")" * 150, "9" * 300, "", "-", "1e999", "True + 1"]
)
def test_what_is_no_arithmetic_is_refused(text: str):
    with pytest.raises(ValueError, match=r"."):
        computed(text)


def test_the_calculator_shows_whole_numbers_and_decimals():
    assert [shown(Fraction(*pair)) for pair in ((9, 3), (9, 2), (1, 3))] == ["3", "4.5", "0.333333"]


def test_a_context_must_hold_all_lines():
    config = RunConfig(method=CalculatorConfig(max_calculations=100))
    config.serving.models["actor"].max_model_len = 512
    assert "4296 tokens" in config.method.problems(config)[0].remedy
