"""The grammar of `odd_replies.py`: replies as models write them, and as they should not.

A reply is thinking, text and calls; each part may be broken, and then all of it is cut anywhere or ended by any token.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

Call = tuple[str, Any]
"""Name and arguments of a call, as a client reads them."""
WORDS = (
    "red",
    " blue",
    "früh ",
    "😀",
    "👩‍👩‍👧",
    "\n\n",
    "  ",
    "42",
    "日本語",
    "Å\u0301",
    "\u200b",
    "\t",
    "}",
    "]",
    '"',
    "\\",
    "&lt;",
    "<",
    "< b>",
    "```json\n",
    "\\n",
    "\ufffd",
    "$x<y$",
)
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<tool_ca",
    "</thi",
    "<|im_start|>",
    "<function=search>",
    "</function>",
)
STRINGS = (
    "ada",
    "</tool_call>",
    "<tool_call>",
    "</think> x",
    "a\nb",
    'she said "no"',
    "\\",
    "{}",
    "😀",
    "\ud83d",
    "<|im_end|>",
    "</function>",
    "",
    " ",
    "null",
)
"""Values of arguments; json.dumps writes them with or without escapes."""
ENDS = ("template", "endoftext", "none")
TAGGED = ("nested tag", "no end of thinking", "tag in the text", "tag in a string")


@dataclass(kw_only=True, slots=True)
class Odd:
    """One reply. Example: `Odd(text="</think>Ada.", kinds=set())`."""

    text: str
    kinds: set[str] = field(default_factory=set)
    """The ways in which it is odd."""
    is_cut: bool = False
    """True if it ended at its length."""
    end: str = "template"
    """The token behind it: the template's end, `<|endoftext|>`, or none, as after a stop text."""
    size: float = 1.0
    """The share of its tokens that were sampled."""
    calls: list[Call] | None = None
    """The reply's calls, if the grammar knows them."""
    never_ends: bool = False
    """True if it is thinking without an end, and without a call."""

    noise: int | None = None
    """Draws tokens by chance behind the text."""

    @property
    def is_tagged(self) -> bool:
        """True if a tag or a call in it is opened and not closed, nested, or not what it seems."""
        return any(kind in TAGGED or kind.startswith("call: ") for kind in self.kinds)

    def ids(self, tokenizer: Any, end: str) -> list[int]:
        """The reply's tokens."""
        ids = tokenizer.encode(self.text, add_special_tokens=False)
        if self.noise is not None:
            draw = random.Random(self.noise)
            ids += [draw.randrange(len(tokenizer)) for _ in range(draw.randint(1, 20))]
        if self.is_cut:
            return ids[: round(len(ids) * self.size)]
        word = {"template": end, "endoftext": "<|endoftext|>"}.get(self.end, "")
        return ids + tokenizer.encode(word, add_special_tokens=False)


def odd_reply(draw: random.Random, *, thinks: bool, call: str) -> Odd:
    """A reply of a model that begins with thinking, or not, and writes calls in this way: hermes, xml or llama."""
    odd = Odd(text="")
    thinking = _thinking(draw, odd) if thinks else ""
    text = "" if draw.random() < 0.3 else _text(draw, odd)
    calls: list[Call] = []
    written = ""
    is_known = not odd.kinds
    for _ in range(draw.choice((0, 0, 1, 1, 2)) if call != "llama" or not text else 0):
        if call == "llama" and written:
            break
        one, piece = _call(draw, call)
        calls.append(one)
        written += piece + draw.choice(("", "\n"))
    if written and draw.random() < 0.35:
        written = _broken(draw, written, odd)
        is_known = False
    if draw.random() < 0.2:
        written += _text(draw, odd)
        is_known = is_known and not calls
    odd.never_ends = odd.never_ends and not calls and "<tool_call>" not in thinking + text + written
    odd.text = thinking + text + written
    is_known = is_known and not odd.kinds
    if any(word in json.dumps(calls) for word in ("</", "<tool", "<|")):
        odd.kinds.add("tag in a string")
    if draw.random() < 0.06:
        odd.noise, odd.never_ends, is_known = draw.randrange(2**31), False, False
        odd.kinds.add("tokens by chance")
    odd.is_cut, odd.end = draw.random() < 0.2, draw.choices(ENDS, weights=(6, 2, 1))[0]
    if odd.is_cut:
        odd.size = draw.random()
        odd.kinds.add("cut")
        is_known = False
    elif odd.end != "template":
        odd.kinds.add(f"ends with {odd.end}")
    odd.calls = calls if is_known and call != "xml" else None
    return odd


def _thinking(draw: random.Random, odd: Odd) -> str:
    shape = draw.choices(("closed", "prompted", "open", "none", "nested"), weights=(5, 2, 2, 1, 2))[0]
    inside = "".join(draw.choice(("Hm. ", "früh", "\n", "2 < 3 ", "😀", " so ")) for _ in range(draw.randint(0, 4)))
    if shape == "closed":
        return f"<think>{inside}</think>"
    if shape == "prompted":
        return f"{inside}</think>"
    if shape == "none":
        odd.never_ends = True
        odd.kinds.add("no end of thinking")
        return ""
    if shape == "open":
        odd.never_ends = True
        odd.kinds.add("no end of thinking")
        return f"<think>{inside}"
    odd.kinds.add("nested tag")
    return f"<think>{inside}{draw.choice(TAGS)}{inside}</think>{draw.choice(('', '</think>', '<think>'))}"


def _text(draw: random.Random, odd: Odd) -> str:
    pieces = [draw.choice(WORDS) for _ in range(draw.randint(1, 6))]
    if draw.random() < 0.3:
        tag = draw.choice(TAGS)
        pieces.insert(draw.randint(0, len(pieces)), tag)
        odd.kinds.add("tag in the text")
        odd.never_ends = odd.never_ends and "</think>" not in pieces
    return "".join(pieces)


def _call(draw: random.Random, form: str) -> tuple[Call, str]:
    """A call that can be read, and how it is written."""
    name, given = draw.choice(("search", "now", "unknown")), {}
    for key in draw.sample(("query", "limit", "name"), draw.randint(0, 2)):
        given[key] = draw.choice((*STRINGS, 5, 2.5, None, True, [1, {"a": "</tool_call>"}], {"deep": {"er": "<think>"}}, 2**70))
    if form == "xml":
        shown = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items() if isinstance(value, str))
        return (name, None), f"<tool_call>\n<function={name}>\n{encodable(shown)}</function>\n</tool_call>"
    is_escaped = any(0xD800 <= ord(letter) <= 0xDFFF for letter in json.dumps(given, ensure_ascii=False)) or draw.random() < 0.5
    arguments = json.dumps(given, ensure_ascii=is_escaped, indent=draw.choice((None, None, 1)))
    if draw.random() < 0.1:
        arguments = json.dumps(arguments)  # written twice, as models do
    key = "parameters" if form == "llama" else "arguments"
    parts = [f'"name": "{name}"', f'"{key}": {arguments}']
    if not given and draw.random() < 0.3 and form == "hermes":
        del parts[1]
    if draw.random() < 0.2:
        parts.reverse()
    body = "{" + ", ".join(parts) + "}"
    known = (name, json.loads(encodable(json.dumps(given, ensure_ascii=False))))
    return known, body if form == "llama" else f"<tool_call>\n{body}\n</tool_call>"


def _broken(draw: random.Random, written: str, odd: Odd) -> str:
    """Calls that cannot be read, or not all of them."""
    kind = draw.choice(
        ("never closed", "cut inside", "quotes", "comma", "list", "NaN", "no name", "nested", "empty", "key", "deep")
    )
    odd.kinds.add(f"call: {kind}")
    if kind == "never closed":
        return written.replace("</tool_call>", "", 1)
    if kind == "cut inside":
        return written[: draw.randint(1, len(written))]
    if kind == "quotes":
        return written.replace('"', "'")
    if kind == "comma":
        return written.replace("}", ",}", 1)
    if kind == "key":
        return written.replace("arguments", "args")
    bodies = {
        "list": '{"name": "search", "arguments": ["ada", 1]}',
        "NaN": '{"name": "search", "arguments": {"limit": NaN}}',
        "no name": '{"name": "", "arguments": {"query": "x"}}',
        "nested": '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>',
        "deep": '{"name": "search", "arguments": '
        + '{"a": ' * (depth := draw.choice((100, 300, 5000)))
        + "1"
        + "}" * depth
        + "}",
        "empty": "",
    }
    return written + f"<tool_call>\n{bodies[kind]}\n</tool_call>"


def encodable(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
