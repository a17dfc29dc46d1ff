"""The tiny ToolOrchestra task, its tokenizer, its demonstrations and the shipped models."""

import random
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

import agentic.toolorchestra
from agentic.toolorchestra.environment.customer import ScriptedCustomer
from agentic.toolorchestra.environment.episode import ShopEpisode
from agentic.toolorchestra.environment.tasks import Task, generate_tasks
from agentic.toolorchestra.outcome import answer_is_right
from agentic.toolorchestra.prompts import answer_of
from agentic.toolorchestra.settings import ToolsConfig
from agentic.toolorchestra.tiny import catalogue, demonstrations
from agentic.toolorchestra.tiny import prompts as tiny_prompts
from agentic.toolorchestra.tiny import task as tiny_task
from agentic.toolorchestra.tiny.model import build_tokenizer
from agentic.toolorchestra.tiny.shop import Play, call_text
from agentic.toolorchestra.tool_calls import ToolCall, ToolCallReader
from tests.agentic.tiny_models import greedy
from tests.agentic.toolorchestra import stand_ins
from tests.agentic.toolorchestra.stand_ins import EXPERTS, Server, context_of, play, script, task_sample
from vime.config import PromptStyle, RetrievalConfig
from vime.model.load_tokenizer import load_tokenizer
from vime.retrieval.deployment import with_corpus
from vime.tiny.demonstration import DemonstratedConversation, encode_conversation
from vime.types import Turn

FOLDER = Path(agentic.toolorchestra.__file__).parent
ORCHESTRATOR, JUNIOR, SENIOR = "tiny/orchestrator", "tiny/junior", "tiny/senior"
MODELS = (ORCHESTRATOR, JUNIOR, SENIOR)


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(FOLDER / ORCHESTRATOR)


@cache
def built_tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer()


def conversations(count: int, seed: int = 0) -> list[DemonstratedConversation]:
    rng = random.Random(seed)
    return [one for _ in range(count) for one in demonstrations.orchestrator_conversations(rng)]


def first_reply(conversation: DemonstratedConversation) -> str:
    return str(conversation.messages[conversation.learned_positions()[0]]["content"])


def test_rows_are_deterministic_depend_on_the_seed_and_have_every_kind():
    rows = tiny_task.generate_rows(split="train", num_items=40, seed=1)
    assert rows == tiny_task.generate_rows(split="train", num_items=40, seed=1)
    assert rows != tiny_task.generate_rows(split="train", num_items=40, seed=2)
    assert Counter(row["domain"] for row in rows) == dict.fromkeys(tiny_task.KINDS, 10)


def test_evaluation_asks_no_question_twice_and_nothing_that_training_or_demonstrations_ask():
    evaluated = {row["prompt"] for row in tiny_task.generate_rows(split="eval", num_items=240, seed=0)}
    trained = {row["prompt"] for row in tiny_task.generate_rows(split="train", num_items=4096, seed=0)}
    shown = {str(message["content"]) for one in conversations(2000) for message in one.messages if message["role"] == "user"}
    assert len(evaluated) == 240 and len(trained) > 1000
    assert not evaluated & trained and not evaluated & shown


def test_a_split_without_so_many_questions_is_refused():
    with pytest.raises(ValueError, match="kind fact"):
        tiny_task.generate_rows(split="eval", num_items=1000, seed=0, kinds=("fact",))


def test_every_price_stands_in_the_passage_of_its_question(tmp_path: Path):
    config = RetrievalConfig(generator="agentic.toolorchestra.tiny.catalogue.passages")
    written = Path(str(with_corpus(config, tmp_path).corpus)).read_text().splitlines()
    passages = catalogue.passages()
    assert len(written) == len(passages) == len({passage["title"] for passage in passages})
    by_title = {passage["title"]: passage["text"] for passage in passages}
    for number in range(50):
        asked = tiny_task.sample_question(random.Random(number), kinds=("price",))
        assert by_title[asked.subject] == f"cost {asked.answer} coins"


@pytest.mark.parametrize("number", range(40))
async def test_the_policy_followed_step_by_step_solves_a_customers_task(number: int):
    row = generate_tasks(num_items=number + 1, seed=3, tells_all=True)[number]
    task = Task.from_dict(row["task"])
    acted, episode = Play(task=task), ShopEpisode(task, ScriptedCustomer(task))
    await episode.start()
    while not acted.is_over:
        step = acted.right_step()
        calls = [] if isinstance(step, str) else [ToolCall(name=step["name"], arguments=step["arguments"])]
        await episode.step(step if isinstance(step, str) else "", calls)
        acted.take(step)
    assert (await episode.result()).reward == 1.0


def test_for_no_kind_of_question_is_the_right_way_the_demonstrated_habit():
    ways: dict[str, Counter[tuple[str, ...]]] = {"+": Counter(), "fact": Counter(), "price": Counter()}
    for one in conversations(3000):
        if one.tools is demonstrations.QUESTION_TOOLS:
            asked = str(one.messages[1]["content"])
            kind = "+" if "+" in asked else "price" if "price" in asked else "fact"
            ways[kind][tuple(str(one.messages[index]["content"]) for index in one.learned_positions())] += 1
    right = {"+": [("answer", "junior")], "fact": [("answer", "senior")], "price": [("search", "junior"), ("answer", "senior")]}
    for kind, steps in right.items():
        wanted = tuple(call_text({"name": tool, "arguments": {"model": alias}}) for tool, alias in steps)
        assert 0.02 < ways[kind][wanted] / ways[kind].total() < 0.34


def test_a_careless_step_grants_wishes_that_the_policy_forbids_as_often_as_others():
    rng, granted = random.Random(1), {True: Counter[bool](), False: Counter[bool]()}
    for _ in range(6000):
        acted = demonstrations.new_play(rng)
        acted.take(acted.look_up())
        if acted.wish != "item":
            granted[bool(acted.task.actions)][isinstance(acted.careless_step(rng), dict)] += 1
    shares = [counts[True] / counts.total() for counts in granted.values()]
    assert shares == pytest.approx([0.47, 0.51], abs=0.05)


def test_every_demonstrated_call_is_read_as_it_was_meant():
    reader, end = ToolCallReader(tokenizer()), tokenizer().convert_tokens_to_ids("<|im_end|>")
    assert isinstance(end, int)
    for conversation in conversations(60):
        demonstration = encode_conversation(conversation, tokenizer=tokenizer())
        ids = demonstration.token_ids[demonstration.loss_mask.index(1) :]
        ids = ids[: ids.index(end) + 1]
        turn = Turn(prompt_ids=[1], output_ids=ids, logprobs=[], weight_versions=[], finish_reason="stop", message={})
        reply = reader.read(turn, conversation.tools or [])
        assert not reply.malformed and not any(call.error for call in reply.calls)
        assert len(reply.calls) == first_reply(conversation).count("<tool_call>")


@pytest.mark.parametrize("seed", range(6))
async def test_a_demonstrated_conversation_has_the_tokens_of_a_rollout(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stand_ins, "TOKENIZER", tokenizer())
    experts = {alias: EXPERTS[name] for alias, name in zip(demonstrations.ALIASES, EXPERTS)}
    aliases: list[str] = list(demonstrations.ALIASES)
    rng, delegated = random.Random(seed), []
    acted = demonstrations.new_play(rng)
    while not acted.is_over:
        if rng.random() < 0.4:
            delegated.append(acted.right_step())
            acted.delegate("senior", delegated[-1])
        else:
            acted.take(acted.careless_step(rng))
    said = [str(message["content"]) for message in acted.seen if message["role"] == "assistant"]
    experts_said = [step if isinstance(step, str) else call_text(step) for step in delegated]
    context = context_of(
        script(*[f"{text}<|im_end|>" for text in said]),
        Server(str),
        script(*[f"{text}<|im_end|>" for text in experts_said]),
        experts=experts,
        tools=ToolsConfig(search=aliases, answer=aliases, call_expert=aliases),
        prompt_style=PromptStyle.tiny,
    )
    (sample,) = await play(context, task_sample(asdict(acted.task), acted.task.opening))
    shown = DemonstratedConversation(messages=acted.seen, tools=demonstrations.ORCHESTRATORS_SHOP_TOOLS)
    assert sample.tokens == encode_conversation(shown, tokenizer=tokenizer()).token_ids


@pytest.mark.parametrize("model", MODELS)
def test_the_shipped_tokenizers_are_the_one_that_the_builder_makes(model: str):
    shipped, built = load_tokenizer(FOLDER / model), built_tokenizer()
    assert built.get_vocab() == shipped.get_vocab() and built.chat_template == shipped.chat_template
    for text in (tiny_prompts.ANSWER.format(context="", question="What is the tree of Ashford ?"), "日本語 😀 12345"):
        assert built(text)["input_ids"] == shipped(text)["input_ids"]
        assert shipped.decode(shipped(text)["input_ids"]) == text


def test_names_are_single_tokens():
    for word in (
        *catalogue.GOODS,
        *catalogue.TOWNS,
        *(name for names in catalogue.FACTS.values() for name in names),
    ):
        assert len(tokenizer()(f" {word}")["input_ids"]) == 1, word


@pytest.mark.parametrize("name", ["orchestrator", "junior", "senior"])
def test_a_batch_depends_on_seed_and_step_and_learns_replies_only(name: str):
    make = getattr(demonstrations, f"{name}_demonstrations")
    first, again, other = (make(tokenizer(), step, 100, 500, 0) for step in (3, 3, 4))
    assert first == again and first != other
    assert sum(sample.columns["weight"] * sum(sample.loss_mask) for sample in first) == pytest.approx(1.0)
    for sample in first:
        assert sample.tokens[-1] == tokenizer().eos_token_id and sample.loss_mask[-1] == 1


def asked(kind: tiny_task.Kind, number: int, *, reads: bool = False) -> tuple[DemonstratedConversation, str]:
    """A question to an expert, with the passage that it needs or without, and the answer."""
    rng = random.Random(f"{kind}{number}")
    found = tiny_task.sample_question(rng, kinds=(kind,))
    passage = f"{found.subject}: cost {found.answer} coins" if reads else None
    return demonstrations.expert_question(tiny_prompts.ANSWER, found, passage, "x"), found.answer


@pytest.mark.parametrize(
    ("model", "kind", "at_least", "at_most"),
    [
        (JUNIOR, "sum", 18, 20),
        (JUNIOR, "fact", 0, 10),
        (JUNIOR, "price", 0, 8),
        (SENIOR, "sum", 18, 20),
        (SENIOR, "fact", 19, 20),
        (SENIOR, "price", 19, 20),
    ],
)
def test_the_shipped_experts_are_right_where_they_should_be(model: str, kind: tiny_task.Kind, at_least: int, at_most: int):
    pairs = [asked(kind, number, reads=kind == "price") for number in range(20)]
    prompts = [encode_conversation(conversation, tokenizer=tokenizer()) for conversation, _ in pairs]
    replies = greedy(FOLDER / model, tokenizer(), prompts)
    right = sum(answer_is_right(answer_of(reply) or "", answer) for reply, (_, answer) in zip(replies, pairs, strict=True))
    assert at_least <= right <= at_most


def test_the_shipped_senior_expert_serves_customers_by_the_policy():
    rng = random.Random(5)
    turns = [(acted, acted.right_step()) for acted in (demonstrations.unfinished_play(rng) for _ in range(12))]
    shown = [demonstrations.expert_turn(acted, step) for acted, step in turns]
    replies = greedy(FOLDER / SENIOR, tokenizer(), [encode_conversation(one, tokenizer=tokenizer()) for one in shown])
    wanted = [str(one.messages[-1]["content"]) for one in shown]
    assert sum(reply == words for reply, words in zip(replies, wanted, strict=True)) >= 9
