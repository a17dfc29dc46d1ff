"""The tiny MemAgent task, its tokenizer and its demonstrations."""

import random
import re
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

import agentic.memagent
from agentic.memagent import prompts
from agentic.memagent.chunks import ChunkAt, split_document
from agentic.memagent.tiny import demonstrations
from agentic.memagent.tiny import task as tiny_task
from agentic.memagent.tiny.model import build_tokenizer
from vime.model.load_tokenizer import load_tokenizer
from vime.tiny import tiny_model

TINY = Path(agentic.memagent.__file__).parent / "tiny" / "actor"


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(TINY)


def sections_of(row: tiny_task.Row) -> tuple[str, ...]:
    return split_document(row["context"], tokenizer=tokenizer(), chunk_tokens=96, max_chunks=512, chunk_at=ChunkAt.paragraph)


def test_rows_are_deterministic_and_depend_on_the_seed() -> None:
    rows = tiny_task.generate_rows(split="train", num_items=5, num_docs=12, seed=1)
    assert rows == tiny_task.generate_rows(split="train", num_items=5, num_docs=12, seed=1)
    assert rows != tiny_task.generate_rows(split="train", num_items=5, num_docs=12, seed=2)


def test_train_and_eval_share_no_question() -> None:
    questions = {
        split: {row["extra_info"]["question"] for row in tiny_task.generate_rows(split=split, num_items=500, num_docs=2, seed=0)}
        for split in ("train", "eval")
    }
    assert len(questions["train"]) > 50 and len(questions["eval"]) > 10
    assert not questions["train"] & questions["eval"]


def test_the_same_seed_asks_the_same_questions_at_every_length() -> None:
    short, long = (tiny_task.generate_rows(split="eval", num_items=20, num_docs=length, seed=3) for length in (6, 60))
    for short_row, long_row in zip(short, long, strict=True):
        assert short_row["prompt"] == long_row["prompt"]
        assert short_row["reward_model"] == long_row["reward_model"]
        assert len(short_row["context"]) < len(long_row["context"])


def test_rows_have_the_format_of_the_real_training_set() -> None:
    row = tiny_task.generate_rows(split="eval", num_items=1, num_docs=10, seed=0)[0]
    assert row["prompt"] == [{"role": "user", "content": row["extra_info"]["question"]}]
    assert row["reward_model"]["style"] == "rule" and len(row["reward_model"]["ground_truth"]) == 1
    assert row["extra_info"]["num_docs"] == 10 and row["extra_info"]["split"] == "eval" and row["extra_info"]["index"] == 0
    documents = row["context"].split("\n\n")
    assert len(documents) == 10
    for number, document in enumerate(documents, start=1):
        assert re.fullmatch(rf"Document {number}:\n(Estate\nThe owner|Resident\nThe home) of \w+ is \w+\.", document)


def test_every_subject_has_one_document_and_the_gold_ones_stand_in_hop_order() -> None:
    for row in tiny_task.generate_rows(split="train", num_items=20, num_docs=40, seed=5):
        documents = row["context"].split("\n\n")
        subjects = [document.split(" is ")[0].split()[-1] for document in documents]
        assert len(set(subjects)) == len(subjects)
        first, second = row["extra_info"]["supporting_documents"]
        assert second - first >= 10
        person = documents[first - 1].removesuffix(".").split()[-1]
        assert documents[second - 1].endswith(f"The home of {person} is {row['reward_model']['ground_truth'][0]}.")


@pytest.mark.parametrize("num_docs", [0, 1])
def test_a_length_without_enough_names_is_refused(num_docs: int) -> None:
    with pytest.raises(ValueError, match="num_docs"):
        tiny_task.generate_rows(split="train", num_items=1, num_docs=num_docs, seed=0)


@pytest.mark.parametrize("num_docs", [2, 7, 24, 96, tiny_task.MAX_DISTINCT, tiny_task.MAX_DISTINCT + 1, 320, 800])
def test_a_reader_that_keeps_the_relevant_facts_of_each_section_answers(num_docs: int) -> None:
    for row in tiny_task.generate_rows(split="eval", num_items=5, num_docs=num_docs, seed=0):
        memory = prompts.NO_MEMORY
        for section in sections_of(row):
            memory = demonstrations.ideal_update(row, memory=memory, section=section)
            assert len(tokenizer()(memory)["input_ids"]) < 24
        answer = demonstrations.final_answer(row, memory=memory)
        assert answer == demonstrations.ANSWER.format(answer=row["reward_model"]["ground_truth"][0])


def test_a_reader_that_keeps_only_the_latest_fact_does_not_answer() -> None:
    rng = random.Random(0)
    for row in tiny_task.generate_rows(split="eval", num_items=20, num_docs=24, seed=0):
        memory = prompts.NO_MEMORY
        for section in sections_of(row):
            memory = demonstrations.latest_update(row, section=section, rng=rng)
        assert demonstrations.final_answer(row, memory=memory) == demonstrations.ANSWER.format(answer=demonstrations.UNKNOWN)


@pytest.mark.parametrize(
    "text", ["Mira's café, 12.5 %\n\n\t x", "日本語 😀", "<think>a</think>\n<tool_call>\n{}\n</tool_call>", "\\boxed{Barton} "]
)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert tokenizer().decode(tokenizer()(text)["input_ids"]) == text


def test_names_are_single_tokens() -> None:
    for name in (*tiny_task.ESTATES, *tiny_task.PEOPLE, *tiny_task.CITIES):
        assert len(tokenizer()(f" {name}")["input_ids"]) == 1


def test_the_shipped_tokenizer_is_the_one_that_the_builder_makes() -> None:
    built = build_tokenizer()
    assert built.get_vocab() == tokenizer().get_vocab()
    assert built.chat_template == tokenizer().chat_template
    text = prompts.MEMORY_PROMPT.format(problem="p", memory="m", chunk="c")
    assert built(text)["input_ids"] == tokenizer()(text)["input_ids"]
    assert tiny_model.build_config(built).vocab_size >= len(built)


def test_the_chat_template_renders_tools_and_has_no_default_system_prompt() -> None:
    plain = tokenizer().apply_chat_template([{"role": "user", "content": "q"}], tokenize=False, add_generation_prompt=True)
    assert plain == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "found"},
    ]
    rendered = tokenizer().apply_chat_template(messages, tools=[call["function"]], tokenize=False)
    assert '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call><|im_end|>' in rendered
    assert "<|im_start|>user\n<tool_response>\nfound\n</tool_response><|im_end|>" in rendered


@pytest.mark.parametrize("step", [0, 30, 60, 95])
def test_a_demonstration_batch_is_deterministic_and_its_masks_fit(step: int) -> None:
    settings = {"seed": 0, "step": step, "num_steps": 100, "num_sequences": 12}
    batch = demonstrations.demonstration_batch(tokenizer(), **settings)
    assert batch == demonstrations.demonstration_batch(tokenizer(), **settings)
    assert len(batch) == 12
    for demonstration in batch:
        assert len(demonstration.token_ids) == len(demonstration.loss_mask)
        assert set(demonstration.loss_mask) == {0, 1}


def test_a_turn_learns_its_reply_and_the_end_and_nothing_of_the_prompt() -> None:
    turn = demonstrations.Exchange(prompt="Your answer:", reply="\\boxed{Barton}")
    demonstration = demonstrations.encode_exchange(turn, tokenizer=tokenizer())
    pairs = list(zip(demonstration.token_ids, demonstration.loss_mask, strict=True))
    assert tokenizer().decode([token for token, learned in pairs if learned]) == "\\boxed{Barton}<|im_end|>"
    assert str(tokenizer().decode([token for token, learned in pairs if not learned])).endswith("<|im_start|>assistant\n")


def test_a_lookup_learns_the_last_word_of_every_repeated_fact() -> None:
    demonstration = demonstrations.lookup_demonstration(tokenizer=tokenizer(), num_facts=6, rng=random.Random(0))
    assert sum(demonstration.loss_mask) == demonstrations.NUM_LOOKUPS
    full_stop = tokenizer()(".")["input_ids"][0]
    for position, learned in enumerate(demonstration.loss_mask):
        assert not learned or demonstration.token_ids[position + 1] == full_stop


def test_most_demonstrated_memory_turns_have_the_bad_habit_at_the_end_of_the_curriculum() -> None:
    good = bad = 0
    for step in range(80, 100):
        batch = demonstrations.demonstration_batch(tokenizer(), seed=0, step=step, num_steps=100, num_sequences=32)
        texts = [tokenizer().decode(demonstration.token_ids) for demonstration in batch]
        good += sum("assistant\nNotes:" in text for text in texts)
        bad += sum("assistant\nLatest:" in text for text in texts)
    assert 0.3 < good / (good + bad) < 0.5


def test_supervised_samples_carry_a_batch_whose_learned_tokens_weigh_the_same() -> None:
    samples = demonstrations.demonstrations(tokenizer(), step=50, num_steps=100, num_tokens=2000, seed=0)
    assert len(samples) == 8
    learned = sum(sum(sample.loss_mask) for sample in samples)
    for sample in samples:
        assert sample.loss_mask[0] == 1 and len(sample.loss_mask) < len(sample.tokens)
        assert abs(sample.columns["weight"] * learned - 1.0) < 1e-6
