"""The answer of agents with a typed output."""

from pydantic import BaseModel


class Answer(BaseModel):
    """An answer, and whether the tools settle it."""

    answer: str
    is_sure: bool
