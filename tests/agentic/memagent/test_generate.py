"""MemAgent's turns: what is asked, what is trained, what is remembered. The model is a script; servers are tested elsewhere."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import agentic.memagent
from agentic.memagent.chunks import ChunkAt, split_document
from agentic.memagent.config import MemAgentConfig
from agentic.memagent.eval_log import eval_log
from agentic.memagent.generate import CHARACTERS_LOGGED, cap, generate
from agentic.memagent.prompts import AnswerForm
from agentic.memagent.reward import reward, score
from agentic.memagent.single_turn import generate as generate_single_turn
from tests.completing import context_with
from vime.chat.served_model import ServedModel
from vime.config import RunConfig
from vime.model.load_tokenizer import load_tokenizer
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason, Turn

TOKENIZER = load_tokenizer(Path(agentic.memagent.__file__).parent / "tiny" / "actor")


@dataclass
class Script:
    """Replies in order, and the prompts it was asked."""

    replies: list[str]
    prompts: list[str] = field(default_factory=list)

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **_: Any) -> Turn:
        self.prompts.append(TOKENIZER.decode(token_ids))
        ids = [*TOKENIZER.encode(self.replies[len(self.prompts) - 1], add_special_tokens=False), TOKENIZER.eos_token_id]
        finished = len(ids) <= sampling["max_tokens"]
        ids = ids[: sampling["max_tokens"]]
        logprobs, versions = [-0.5] * len(ids), [3] * len(ids)
        return Turn(
            output_ids=ids,
            logprobs=logprobs,
            weight_versions=versions,
            finish_reason="stop" if finished else "length",
            seconds=0.5,
        )


def run(script: Script, hook=generate, context_text: str = "", *, evaluation: bool = False, **settings: Any) -> list[Sample]:
    method = MemAgentConfig(**{"chunk_tokens": 40, "max_memory_tokens": 20, "max_final_tokens": 20, **settings})
    model = ServedModel(client=script, tokenizer=TOKENIZER, max_model_len=400, temperature=1.0, top_p=1.0, session="s")
    context = context_with({"actor": model}, config=RunConfig(method=method), evaluation=evaluation)
    sample = Sample(prompt=[{"role": "user", "content": "Who?"}], label=["Barton"], metadata={"context": context_text})
    result = asyncio.run(hook(context, sample, Sampling(temperature=1.0, top_p=1.0)))
    return result if isinstance(result, list) else [result]


DOCUMENT = "\n\n".join(f"Document {i}:\nTitle {i}\nA sentence that says little about number {i}." for i in range(1, 6))


def test_each_chunk_sees_the_memory_of_the_one_before_and_the_answer_sees_memory_only():
    num_chunks = len(split_document(DOCUMENT, tokenizer=TOKENIZER, chunk_tokens=40, max_chunks=99, chunk_at=ChunkAt.token))
    script = Script([*(f"memory {i}" for i in range(num_chunks)), "\\boxed{Barton}"])
    samples = run(script, context_text=DOCUMENT)
    assert len(samples) == num_chunks + 1
    assert "No previous memory" in script.prompts[0]
    assert all(f"memory {i - 1}" in script.prompts[i] for i in range(1, num_chunks + 1))
    assert "Title" not in script.prompts[-1]


def test_every_turn_is_a_sequence_of_its_own_whose_sampled_tokens_are_trained():
    samples = run(Script(["m"] * 20 + ["x"]), context_text="One line.")
    for sample in samples:
        sample.validate()
        assert sample.loss_mask == [1] * sample.response_length
        assert sample.tokens[-1] == TOKENIZER.eos_token_id


def test_an_empty_reply_keeps_the_old_memory():
    script = Script(["known", "", "", "", "", "", "", "", ""])
    run(script, context_text=DOCUMENT)
    assert "known" in script.prompts[2]


def test_an_empty_reply_empties_the_memory_if_it_is_not_kept():
    script = Script(["known", "", "", "", "", "", "", "", ""])
    run(script, context_text=DOCUMENT, keep_memory=False)
    assert "known" in script.prompts[1] and "known" not in script.prompts[2]


@pytest.mark.parametrize("hook", [generate, generate_single_turn])
@pytest.mark.parametrize("evaluation", [False, True])
def test_an_evaluation_may_ask_for_a_sentence_and_training_always_asks_for_a_box(hook: Any, evaluation: bool):
    script = Script(["m"] * 9)
    run(script, hook=hook, context_text="One line.", evaluation=evaluation, evaluation_answer=AnswerForm.sentence)
    assert ("the answer is" in script.prompts[-1], "boxed" in script.prompts[-1]) == (evaluation, not evaluation)


@pytest.mark.parametrize(
    ("response", "strict", "lenient"),
    [
        ("Therefore, the answer is (Barton).", 1.0, 1.0),
        ("Not Ada. **Therefore, the answer is Barton, the king.**", 0.0, 1.0),
        ("It is Barton.", 0.0, 0.0),
        ("The end: the answer is", 0.0, 0.0),
    ],
)
def test_a_sentence_is_scored_by_what_follows_its_fixed_words(response: str, strict: float, lenient: float):
    method = MemAgentConfig(evaluation_answer=AnswerForm.sentence)
    context = Context(config=RunConfig(method=method), evaluation=True, session_id="s", models={})
    (sample,) = run(Script([response]), hook=generate_single_turn, context_text="x", max_single_turn_tokens=60)
    found = asyncio.run(reward(context, [replace(sample, response=response)]))
    assert (found.score, found.metrics["lenient"]) == (strict, lenient)


def test_an_answer_that_hits_its_limit_is_truncated():
    samples = run(Script(["m", "word " * 50]), context_text="One line.", max_final_tokens=5)
    assert samples[-1].stop_reason is StopReason.TOKEN_LIMIT


def test_the_single_turn_baseline_fits_the_context_and_loses_the_middle():
    script = Script(["\\boxed{Barton}"])
    samples = run(script, hook=generate_single_turn, context_text=DOCUMENT * 10, max_single_turn_tokens=20)
    assert len(samples[0].tokens) <= 400
    assert "Document 1:" in script.prompts[0] and "number 5" in script.prompts[0]


def test_chunks_lose_nothing_and_respect_the_limit():
    chunks = split_document(DOCUMENT, tokenizer=TOKENIZER, chunk_tokens=40, max_chunks=99, chunk_at=ChunkAt.token)
    assert "".join(chunks) == DOCUMENT
    for chunk_at in ChunkAt:
        chunks = split_document(DOCUMENT, tokenizer=TOKENIZER, chunk_tokens=40, max_chunks=99, chunk_at=chunk_at)
        assert all(len(TOKENIZER.encode(chunk)) <= 41 for chunk in chunks)
        assert "".join("".join(chunks).split()) == "".join(DOCUMENT.split())


def test_paragraphs_are_not_cut():
    chunks = split_document(DOCUMENT, tokenizer=TOKENIZER, chunk_tokens=60, max_chunks=99, chunk_at=ChunkAt.paragraph)
    assert all(chunk.startswith("Document ") and chunk.endswith(".") for chunk in chunks)


def test_too_long_a_document_loses_its_middle():
    chunks = split_document(DOCUMENT, tokenizer=TOKENIZER, chunk_tokens=20, max_chunks=4, chunk_at=ChunkAt.token)
    whole = split_document(DOCUMENT, tokenizer=TOKENIZER, chunk_tokens=20, max_chunks=99, chunk_at=ChunkAt.token)
    assert chunks == (*whole[:2], *whole[-2:])


def test_strict_and_lenient_scores_differ_where_they_should():
    assert score("\\boxed{Barton}", ["Barton"]).metrics["strict"] == 1.0
    loose = score("It is Barton", ["Barton"])
    assert (loose.score, loose.metrics["lenient"], loose.metrics["boxed"]) == (0.0, 1.0, 0.0)


def test_the_eval_log_shows_recall_after_each_chunk():
    memories = ["nothing", "Barton lives here"]
    abouts = [
        {"turn": i, "memory": m, "memory_tokens": len(m.split()), "holds_gold": float(i), "cut": i == 1, "empty": False}
        for i, m in enumerate(memories)
    ]
    samples = [{"response": about["memory"], "metadata": about} for about in abouts]
    answer = {"response": "x", "metadata": {}}
    item = {"label": ["Barton"], "metrics": {"boxed": 1.0, "strict": 1.0}, "samples": [*samples, answer]}
    failed = {"label": ["Rome"], "metrics": {}, "samples": []}
    log = eval_log(None, [item, failed])
    assert log.figures["recall_by_chunk"]["series"]["gold answer in memory"] == [0.0, 1.0]
    assert log.figures["memory_by_chunk"] == {"x": [1, 2], "series": {"tokens of the memory": [1.0, 3.0]}}
    expected = {"turns_mean": 3, "memory_tokens_mean": 2, "memory_cut_share": 0.5, "memory_empty_share": 0, "no_box_share": 0.5}
    assert expected | {"strict": 0.5, "recall_at_the_end": 0.5} == log.metrics, "failed items count"
    abouts[0].pop("holds_gold")
    without = eval_log(None, [item, failed])
    assert list(without.figures) == ["memory_by_chunk"] and "recall_at_the_end" not in without.metrics


def test_recall_looks_at_the_whole_memory_not_at_the_part_that_is_logged():
    memory = "word " * 500 + "the BARTON, who lives here"
    samples = run(Script(["nothing yet", memory, "", "x"]), context_text=DOCUMENT[:200], chunk_tokens=40, max_memory_tokens=2000)
    abouts = [sample.metadata for sample in samples[:-1]]
    assert [about["holds_gold"] for about in abouts] == [0.0, 1.0, 1.0]
    assert "BARTON" not in abouts[1]["memory"] and len(abouts[1]["memory"]) == CHARACTERS_LOGGED
    results = [{"label": ["Barton"], "metrics": {}, "samples": [{"response": "", "metadata": about} for about in abouts]}]
    log = eval_log(None, results)
    assert log.metrics["recall_at_the_end"] == 1.0
    assert log.figures["recall_by_chunk"] == {"x": [1, 2, 3], "series": {"gold answer in memory": [0.0, 1.0, 1.0]}}


def test_a_memory_is_cut_at_its_tokens_and_its_length_noted():
    long = "word " * 50
    samples = run(Script([long, "", "\\boxed{Barton}"]), context_text=DOCUMENT[:250], chunk_tokens=200, max_memory_tokens=20)
    first = samples[0].metadata
    assert first["cut"] and first["memory_tokens"] <= 20 and not first["empty"]
    assert cap(long, TOKENIZER, 10)[1:] == (10, True) and len(TOKENIZER.encode(cap(long, TOKENIZER, 10)[0])) <= 10
    assert cap("short", TOKENIZER, 99)[0] == "short" and cap("", TOKENIZER, 9) == ("", 0, False)
