"""Rows of ASDiv-A and its like as SVAMP's repository publishes them: the numbers of a problem stand in their own column."""

import re
from typing import Any

_PLACE = re.compile(r"\bnumber(\d+)\b")


def row(published: dict[str, Any]) -> dict[str, Any]:
    """A row with its numbers in the text.

    `row({"Question": "number0 and number1 ?", "Numbers": "7 2", "Answer": "9.0"})` is `{"question": "7 and 2 ?", "answer": "9"}`.
    """
    numbers = published["Numbers"].split()
    question = _PLACE.sub(lambda found: numbers[int(found[1])], published["Question"])
    return {"question": question, "answer": published["Answer"].removesuffix(".0")}
