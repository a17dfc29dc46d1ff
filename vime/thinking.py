"""The end of a reply's thinking: one definition for all code that reads an answer, a verdict or a call from a reply."""

OPEN, CLOSE = "<think>", "</think>"


def opens_thinking(prompt: str) -> bool:
    """True if a rendered prompt ends with the opening of a thinking, so that the reply begins within it."""
    return prompt.rstrip().endswith(OPEN)


def after_thinking(reply: str, *, thinks: bool = False) -> str:
    """The part of a reply behind its last thinking; "" if thinking was opened and not closed, because nothing comes behind it.

    With `thinks` the reply begins within a thinking, because its prompt has opened it or the model always thinks first: a reply
    that never closes it is all thinking. Example: `after_thinking("<think>So 7?</think> 8")` is `" 8"`.
    """
    closed = reply.rfind(CLOSE)
    if reply.rfind(OPEN) > closed or (thinks and closed < 0):
        return ""
    return reply[closed + len(CLOSE) :] if closed >= 0 else reply
