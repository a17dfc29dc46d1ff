"""Whether an answer is right, and whether two lists of calls are the same."""

import pytest

from agentic.toolorchestra.outcome import answer_is_right, same_calls


@pytest.mark.parametrize(
    ("answer", "label", "right"),
    [
        ("Paris", "paris", True),
        ("  PARIS! ", "Paris", True),
        ("Café", "cafe", True),
        ("It is Ada Lovelace, of course.", "Ada Lovelace", True),
        ("14", "4", False),
        ("", "x", False),
        ("anything", "", False),
        ("!?", "x", False),
        ("yes " + "because " * 11, "yes", False),
        ("yes because", "yes", True),
        ("word " * 501 + "the one long label here", "the one long label here", False),
        ("\uff34\uff57\uff4f", "two", True),
    ],
)
def test_answers(answer: str, label: str, right: bool):
    assert answer_is_right(answer, label) is right


def test_calls_are_the_same_in_any_order_but_not_in_any_number():
    one = {"name": "book", "arguments": {"seat": 1, "row": "a"}}
    other = {"name": "pay", "arguments": {}}
    assert same_calls([one, other], [{"name": "pay"}, {"name": "book", "arguments": {"row": "a", "seat": 1}}])
    assert not same_calls([one, one], [one])
    assert not same_calls([one], [{"name": "book", "arguments": {"seat": 2, "row": "a"}}])
