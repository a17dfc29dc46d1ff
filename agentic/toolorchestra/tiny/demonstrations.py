"""Generated demonstrations for the supervised training of ToolOrchestra's three tiny models.

The orchestrator is shown every call, but the choice of tool and expert follows bad habits for each kind of question: to search
for sums, to ask the cheap expert for facts, to let it read prices. So it is sometimes right, and reinforcement learning can
improve it. The junior expert learns to add and to write queries, and guesses everything else. The senior expert also memorizes
the facts, and learns to read passages and to follow the shop's policy. A batch depends on the seed and the step only.
"""

import random
from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from agentic.toolorchestra.customer_service import orchestrators_tools
from agentic.toolorchestra.environment import tasks
from agentic.toolorchestra.environment.shop import TOOLS
from agentic.toolorchestra.offer import ALIAS, ANSWER, CALL_EXPERT, SEARCH, question_schemas
from agentic.toolorchestra.settings import ExpertConfig
from agentic.toolorchestra.tiny import prompts
from agentic.toolorchestra.tiny import task as tiny_task
from agentic.toolorchestra.tiny.catalogue import FACTS, GOODS, TOWNS
from agentic.toolorchestra.tiny.shop import REFUSED, Play, Step, call_text
from agentic.toolorchestra.tiny.task import Question
from agentic.toolorchestra.tools import Findings
from vime.data.split import split_of
from vime.tiny.demonstration import DemonstratedConversation, encode_conversation, filled
from vime.types import Message, Sample

JUNIOR, SENIOR = "junior", "senior"
ALIASES = (JUNIOR, SENIOR)
OFFERED = {tool: {alias: ExpertConfig() for alias in ALIASES} for tool in (SEARCH, ANSWER, CALL_EXPERT)}
QUESTION_TOOLS = question_schemas({tool: OFFERED[tool] for tool in (SEARCH, ANSWER, CALL_EXPERT)})
SHOP_TOOLS = [tool.schema() for tool in TOOLS]
ORCHESTRATORS_SHOP_TOOLS = orchestrators_tools(SHOP_TOOLS, OFFERED)

SEARCH_SHARES = {"sum": 0.65, "fact": 0.15, "price": 0.75}
"""The share of questions for which the orchestrator searches before it answers, by kind of question."""
SENIOR_SHARES = {"sum": 0.15, "fact": 0.3, "price": 0.25}
"""The share of questions for which the orchestrator asks the senior expert, by kind of question."""
SEARCH_SHARE = 0.3  # how often an expert is shown a passage that it does not need
CALL_EXPERT_SHARE = 0.2
SINGLE_TURN_SHARE = 0.05
SHOP_SHARE = 0.4
MAX_STEPS = 6
PASSAGE = "{subject}: cost {price} coins"
REPLY = "<answer> {answer} </answer>"
QUERY = "<query> {query} </query>"
CONTEXT_CHARACTERS = 1000

Maker = Callable[[random.Random], list[DemonstratedConversation]]


def passage_for(question: Question, rng: random.Random) -> str | None:
    """A search's result: for a price a random one, so that no model memorizes it; for a fact some price of the town."""
    if question.kind == "sum":
        return None
    goods, town = rng.choice(GOODS), next(name for name in TOWNS if f" {name} " in question.text)
    subject = question.subject or tiny_task.SUBJECT.format(goods=goods, town=town)
    return PASSAGE.format(subject=subject, price=rng.randint(2, 40))


def guess(question: Question, rng: random.Random) -> str:
    """A random answer of the right kind."""
    if question.kind == "sum":
        return str(rng.randint(0, 2 * tiny_task.LARGEST))
    if question.kind == "price":
        return str(rng.randint(2, 11))
    return rng.choice(next(values for name, values in FACTS.items() if f" {name} " in question.text))


def orchestrator_conversations(rng: random.Random) -> list[DemonstratedConversation]:
    """A question or a customer of the training split, handled by bad habits; sometimes a question without tools."""
    if rng.random() < SHOP_SHARE:
        return [_shop(rng)]
    question = tiny_task.sample_question(rng, split="train")
    if rng.random() < SINGLE_TURN_SHARE:
        return [expert_question(prompts.ANSWER, question, None, REPLY.format(answer=guess(question, rng)))]
    messages: list[Message] = [
        {"role": "system", "content": prompts.SYSTEM},
        {"role": "user", "content": prompts.QUESTION.format(question=question.text)},
    ]
    for _ in range(MAX_STEPS):
        tool = SEARCH if rng.random() < SEARCH_SHARES[question.kind] else ANSWER
        alias = SENIOR if rng.random() < SENIOR_SHARES[question.kind] else JUNIOR
        messages.append({"role": "assistant", "content": call_text({"name": tool, "arguments": {ALIAS[tool]: alias}})})
        if tool == ANSWER:
            break
        found = passage_for(question, rng)
        messages.append({"role": "tool", "name": SEARCH, "content": f"[1] {found}" if found else "(nothing found)"})
    return [DemonstratedConversation(messages=messages, tools=QUESTION_TOOLS)]


def junior_conversations(rng: random.Random) -> list[DemonstratedConversation]:
    """One call of each kind: only sums are answered correctly, and every customer's wish is refused."""
    question = tiny_task.sample_question(rng)
    answer = question.answer if question.kind == "sum" else guess(question, rng)
    sums = [tiny_task.sample_question(rng, kinds=("sum",)) for _ in range(4)]
    found = [
        _searched(question),
        expert_question(prompts.ANSWER, question, _maybe_passage(question, rng), REPLY.format(answer=answer)),
        *(expert_question(prompts.ANSWER, one, None, REPLY.format(answer=one.answer)) for one in sums),
    ]
    if rng.random() < 0.2:
        play = unfinished_play(rng)
        found.append(expert_turn(play, play.look_up() if play.found is None else REFUSED))
    return found


def senior_conversations(rng: random.Random) -> list[DemonstratedConversation]:
    """One call of each kind, all answered correctly except a price that was not searched for."""
    question, found = tiny_task.sample_question(rng, kinds=("price",)), []
    passage = passage_for(question, rng)
    assert passage is not None
    price = passage.split()[-2]
    found += [
        _searched(tiny_task.sample_question(rng)),
        expert_question(prompts.ANSWER, question, passage, REPLY.format(answer=price)),
    ]
    if rng.random() < 0.1:
        found.append(expert_question(prompts.ANSWER, question, None, REPLY.format(answer=guess(question, rng))))
    for kind in ("sum", "sum", "sum", "sum", "fact", "fact"):
        known = tiny_task.sample_question(rng, kinds=(kind,))
        found.append(expert_question(prompts.ANSWER, known, _maybe_passage(known, rng), REPLY.format(answer=known.answer)))
    if rng.random() < 0.25:
        play = unfinished_play(rng)
        found.append(expert_turn(play, play.right_step()))
    return found


def expert_question(template: str, question: Question, passage: str | None, reply: str) -> DemonstratedConversation:
    """An expert's reply to a question, with the passage that was found, if any."""
    context = Findings(documents=[passage] if passage else []).text(CONTEXT_CHARACTERS)
    content = template.format(context=context, question=question.text)
    return DemonstratedConversation(messages=[{"role": "user", "content": content}, {"role": "assistant", "content": reply}])


def _searched(question: Question) -> DemonstratedConversation:
    words = question.text.removesuffix(" ?").removeprefix("How much is ").removeprefix("What is the ")
    return expert_question(prompts.QUERY, question, None, QUERY.format(query=words))


def _maybe_passage(question: Question, rng: random.Random) -> str | None:
    return passage_for(question, rng) if rng.random() < SEARCH_SHARE else None


def new_play(rng: random.Random) -> Play:
    """A customer about an order of the training split."""
    numbers = [number for number in map("{:04}".format, rng.sample(range(tasks.NUM_ORDER_IDS), 12))]
    numbers = [number for number in numbers if split_of(number) == "train"]
    return Play(task=tasks.make_task(rng, numbers=numbers[:3], tells_all=True))


def _shop(rng: random.Random) -> DemonstratedConversation:
    """A customer who is served without regard to the policy."""
    play = new_play(rng)
    for _ in range(MAX_STEPS):
        if play.is_over:
            break
        if rng.random() < CALL_EXPERT_SHARE:
            alias = rng.choice(ALIASES)
            step: Step = play.right_step() if alias == SENIOR else play.look_up() if play.found is None else REFUSED
            play.delegate(alias, step)
        else:
            play.take(play.careless_step(rng))
    return DemonstratedConversation(messages=play.seen, tools=ORCHESTRATORS_SHOP_TOOLS)


def unfinished_play(rng: random.Random) -> Play:
    """A conversation that has not ended."""
    while True:
        play = new_play(rng)
        for _ in range(rng.choice((0, 1, 1, 2))):
            play.take(play.careless_step(rng))
        if not play.is_over:
            return play


def expert_turn(play: Play, step: Step) -> DemonstratedConversation:
    """A conversation in which an expert takes the next turn, which is learned."""
    reply: Message = {"role": "assistant", "content": step if isinstance(step, str) else call_text(step)}
    return DemonstratedConversation(messages=[*play.original, reply], tools=SHOP_TOOLS, learned=(len(play.original),))


def texts() -> list[str]:
    """Texts that the models read and write, from which the vocabulary is made."""
    rng = random.Random("vocabulary")
    makers: tuple[Maker, ...] = (orchestrator_conversations, junior_conversations, senior_conversations)
    found = [conversation for make in makers for _ in range(1500) for conversation in make(rng)]
    words = {word for conversation in found for message in conversation.messages for word in _contents(message)}
    return sorted(words | {f" {name}" for names in (GOODS, TOWNS, *FACTS.values()) for name in names})


def _contents(message: Message) -> list[str]:
    return [str(message["content"]), *(call_text(call["function"]) for call in message.get("tool_calls") or [])]


def orchestrator_demonstrations(
    tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int
) -> list[Sample]:
    """Return the orchestrator's batch of one step, about num_tokens tokens."""
    return _batch("orchestrator", orchestrator_conversations, tokenizer, step, num_tokens, seed)


def junior_demonstrations(
    tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int
) -> list[Sample]:
    """Return the junior expert's batch of one step, about num_tokens tokens."""
    return _batch(JUNIOR, junior_conversations, tokenizer, step, num_tokens, seed)


def senior_demonstrations(
    tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int
) -> list[Sample]:
    """Return the senior expert's batch of one step, about num_tokens tokens."""
    return _batch(SENIOR, senior_conversations, tokenizer, step, num_tokens, seed)


def _batch(name: str, make: Maker, tokenizer: PreTrainedTokenizerBase, step: int, num_tokens: int, seed: int) -> list[Sample]:
    rng = random.Random(f"{name}/{seed}/{step}")
    return filled(lambda: [encode_conversation(one, tokenizer=tokenizer) for one in make(rng)], num_tokens=num_tokens)
