"""Generated demonstrations for the supervised training of the tiny coding model.

It learns every step well: to find the code, to look up what a document says, alone or by a sub-agent, to write the right line,
and to write down what it knows when its conversation is summarized. But it often submits without a change, looks at names that do
not matter, or changes the code without having read the document. So it is sometimes right, and reinforcement learning can improve
it. A batch depends on the seed and the step only.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentic.coding import tools
from agentic.coding.prompts import TINY
from agentic.coding.tiny import task as tiny_task
from agentic.coding.tiny.functions import COMPARISONS, SIGNS, Function
from agentic.coding.tiny.task import Repository
from agentic.coding.tools import CREATED, EDITED, SUBMITTED
from vime.tiny.demonstration import DemonstratedConversation, encode_conversation, filled
from vime.types import Message, Sample

SKILL = 0.97
"""Share of right steps in the first part of the curriculum."""
HABITS = {"nothing": 0.5, "document": 0.6, "code": 0.35, "both": 0.8, "edited": 0.9}
"""Share of right steps in the last part, by the state of knowledge; it teaches the bad habits."""
HABIT_PROGRESS = 0.8
"""The progress at which the last part begins."""
EXPLORE_SHARE = 0.35
SUMMARY_SHARE = 0.2
DOCUMENT_FIRST_SHARE = 0.25
GUESS_SHARE, VAIN_SHARE, SUBMIT_SHARE = 0.6, 0.2, 0.5
"""Shares of the kinds of wrong steps: a guess where the code is known, else a failing edit, else the end, else another look."""
SINGLE_TURN_SHARE = 0.03
MAX_TURNS = 8
FIND_CODE = "grep -rA1 'def {name}' src"
FIND_DOCUMENT = "grep -rh {name} docs"
LIST = "ls docs src"
UNKNOWN = "nothing"
FAILED_EDIT = "error: the old text occurs 0 times in {path}, not once"


@dataclass(kw_only=True, slots=True)
class Play:
    """One conversation about a repository, with the state of knowledge at its end."""

    repository: Repository
    messages: list[Message] = field(default_factory=list)
    knows_code: bool = False
    knows_document: bool = False
    is_edited: bool = False
    is_over: bool = False

    @property
    def state(self) -> str:
        """The state of knowledge, as a key of HABITS."""
        if self.is_edited:
            return "edited"
        both = self.knows_code and self.knows_document
        return "both" if both else "code" if self.knows_code else "document" if self.knows_document else "nothing"

    @property
    def function(self) -> Function:
        """The function with the bug."""
        return self.repository.broken

    def begin(self, summary: str = "") -> None:
        """Opens the conversation, or one that goes on from a summary."""
        task = TINY.task.format(statement=tiny_task.statement(self.function.name))
        content = TINY.resumed.format(task=task, summary=summary) if summary else task
        self.messages = [{"role": "system", "content": TINY.system}, {"role": "user", "content": content}]

    def call(self, name: str, result: str, **arguments: Any) -> None:
        """Adds a tool call and its result."""
        self.messages += [{"role": "assistant", "content": call_text(name, arguments)}, {"role": "tool", "content": result}]

    def find_code(self) -> None:
        """Looks for the code of the function."""
        path, function = self.repository.path, self.function
        first, second = function.source(has_bug=True).splitlines()
        self.call("shell", f"{path}:{first}\n{path}-{second}", command=FIND_CODE.format(name=function.name))
        self.knows_code = True

    def find_document(self) -> None:
        """Looks up what the function should return."""
        function = self.function
        self.call("shell", tiny_task.described(function).strip(), command=FIND_DOCUMENT.format(name=function.name))
        self.knows_document = True

    def explore(self) -> DemonstratedConversation:
        """Lets a sub-agent look it up, whose conversation is returned."""
        function = self.function
        self.call("explore", function.document, question=function.name)
        self.knows_document = True
        other = Play(repository=self.repository)
        question = TINY.question.format(question=function.name)
        other.messages = [{"role": "system", "content": TINY.explorer}, {"role": "user", "content": question}]
        other.find_document()
        other.messages.append({"role": "assistant", "content": function.document})
        return DemonstratedConversation(messages=other.messages, tools=tools.LOOKING)

    def edit(self, new: str) -> None:
        """Replaces the line."""
        self.call("edit", EDITED, path=self.repository.path, old=self.function.wrong, new=new)
        self.is_edited = True

    def edit_in_vain(self) -> None:
        """Tries to replace a line that is not there."""
        path = self.repository.path
        self.call("edit", FAILED_EDIT.format(path=path), path=path, old=self.function.code, new=self.function.wrong)

    def list_files(self) -> None:
        """Looks at the names of all files."""
        files = sorted(self.repository.files())
        folders = [[path.removeprefix(f"{name}/") for path in files if path.startswith(f"{name}/")] for name in ("docs", "src")]
        self.call("shell", "\n".join(["docs:", *folders[0], "", "src:", *folders[1]]), command=LIST)

    def submit(self) -> None:
        """Ends the work."""
        self.call("submit", SUBMITTED)
        self.is_over = True

    def summary(self) -> str:
        """The state of knowledge, as the model writes it down."""
        if self.is_edited:
            return EDITED
        parts = [f"{self.repository.path}: {self.function.wrong}"] if self.knows_code else []
        parts += [f"document: {self.function.document}"] if self.knows_document else []
        return "; ".join(parts) or UNKNOWN


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as the chat template writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def guess(function: Function, rng: random.Random) -> str | None:
    """A line as written without reading the document: another sign in the place of the present one, if there is one."""
    words = function.wrong.replace("result =", "return").split()
    for signs in (SIGNS, COMPARISONS):
        for place, word in enumerate(words):
            if word in signs.values():
                others = sorted(set(signs.values()) - {word})
                return " ".join([*words[:place], rng.choice(others), *words[place + 1 :]])
    return None


def conversations(rng: random.Random, *, has_habits: bool) -> list[DemonstratedConversation]:
    """The conversations of one rollout on a repository of the training split: the agent's own, and those of its sub-agents."""
    play, found = Play(repository=_repository(rng)), list[DemonstratedConversation]()
    if rng.random() < SINGLE_TURN_SHARE:
        prompt = TINY.single_turn.format(statement=tiny_task.statement(play.function.name), files="")
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": UNKNOWN}]
        return [DemonstratedConversation(messages=messages)]
    play.begin()
    for _ in range(MAX_TURNS):
        is_right = rng.random() < (HABITS[play.state] if has_habits else SKILL)
        found += _step(play, rng) if is_right else _misstep(play, rng)
        if play.is_over:
            break
        if rng.random() < SUMMARY_SHARE:
            summary = play.summary()
            play.messages += [{"role": "user", "content": TINY.summarize}, {"role": "assistant", "content": summary}]
            found.append(DemonstratedConversation(messages=play.messages, tools=tools.ALL))
            play.begin(summary)
    if len(play.messages) > 2:
        found.append(DemonstratedConversation(messages=play.messages, tools=tools.ALL))
    return found


def _repository(rng: random.Random) -> Repository:
    """A repository of the training split; wrong constants, which are the hardest to learn, come more often."""
    drawn = [tiny_task.sample_repository(rng, split="train") for _ in range(2)]
    return next((one for one in drawn if one.position.kind == "constant"), drawn[0])


def _step(play: Play, rng: random.Random) -> list[DemonstratedConversation]:
    """The right next step, together with the conversation of a sub-agent if one is asked."""
    if play.is_edited:
        play.submit()
    elif play.knows_code and play.knows_document:
        play.edit(play.function.code)
    elif play.knows_document or (not play.knows_code and rng.random() > DOCUMENT_FIRST_SHARE):
        play.find_code()
    elif rng.random() < EXPLORE_SHARE:
        return [play.explore()]
    else:
        play.find_document()
    return []


def _misstep(play: Play, rng: random.Random) -> list[DemonstratedConversation]:
    """A step of a bad habit."""
    guessed = guess(play.function, rng) if play.state == "code" and rng.random() < GUESS_SHARE else None
    if guessed is not None:
        play.edit(guessed)
    elif play.knows_code and rng.random() < VAIN_SHARE:
        play.edit_in_vain()
    elif rng.random() < SUBMIT_SHARE:
        play.submit()
    else:
        play.list_files()
    return []


def texts() -> list[str]:
    """Texts that the model reads and writes, from which the vocabulary is made."""
    rng = random.Random("vocabulary")
    found = [dialogue for _ in range(3000) for dialogue in conversations(rng, has_habits=rng.random() < 0.5)]
    words = {str(message["content"]) for dialogue in found for message in dialogue.messages}
    return sorted(words | {CREATED})


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step of num_steps, about num_tokens tokens."""
    has_habits = step / num_steps >= HABIT_PROGRESS
    rng = random.Random(f"coding/{seed}/{step}")
    return filled(
        lambda: [encode_conversation(one, tokenizer=tokenizer) for one in conversations(rng, has_habits=has_habits)],
        num_tokens=num_tokens,
    )
