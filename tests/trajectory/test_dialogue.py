"""Trajectories over Qwen3's own tokenizer and template: prompts are the template's, and each sampled token counts once."""

import copy
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError

from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.trajectory.dialogue import COMPACTED, EDITED, MAIN, RETRY, SUBAGENT, Dialogue
from vime.trajectory.messages import parsed
from vime.trajectory.template import THINKING_DROPPED, ChatTemplate, turn_ahead
from vime.trajectory.trajectory import Call, CallPrompt, Trajectory
from vime.types import Message, Sample, Turn

TOOLS = [{"type": "function", "function": {"name": "search", "description": "", "parameters": {"type": "object"}}}]
SYSTEM: Message = {"role": "system", "content": "You are terse."}
WORDS = ("red", "<think>", "blue", "\n\n", " ", "früh", "<|im_end|>", "</tool_call>", "42", "{", "green")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return qwen3_tokenizer()


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def reply(content: str = "", *, thinks: str = "", calls: tuple[str, ...] = ()) -> Message:
    """A reply; `calls` are the queries for which it calls the tool."""
    message: Message = {"role": "assistant", "content": content}
    if thinks:
        message["reasoning_content"] = thinks
    if calls:
        functions = [{"name": "search", "arguments": json.dumps({"query": query})} for query in calls]
        message["tool_calls"] = [
            {"id": f"{content}-{place}", "type": "function", "function": function} for place, function in enumerate(functions)
        ]
    return message


def result(call: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call, "content": content}


def as_written(message: Message) -> str:
    """A reply as Qwen3 writes it."""
    thinking = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if "reasoning_content" in message else ""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    shown = [f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>' for call in calls]
    return thinking + "\n".join([*([message["content"]] if message["content"] else []), *shown]) + "<|im_end|>"


class Played:
    """A trajectory with a model with scripted replies; the logprob of a token encodes its turn and its place in the turn."""

    def __init__(self, tokenizer: Any, *, fork: bool = True, **arguments: Any) -> None:
        self.tokenizer, self.arguments = tokenizer, arguments
        self.trajectory, self.dialogue = Trajectory(), Dialogue(ChatTemplate(tokenizer, arguments), fork=fork)
        self.asked: list[tuple[CallPrompt, Call]] = []

    def ask(self, messages: list[Message], answer: Message, *, cut: bool = False, **options: Any) -> CallPrompt:
        prompt = self.dialogue.prompt(messages, **options)
        ids = self.tokenizer.encode(as_written(answer), add_special_tokens=False)
        ids = ids[:-1] if cut else ids
        logprobs = [-float(1000 * (len(self.asked) + 1) + place) for place in range(len(ids))]
        turn = Turn(output_ids=ids, logprobs=logprobs, weight_versions=[1] * len(ids), finish_reason="length" if cut else "stop")
        call = self.trajectory.begin(prompt, model="actor", tokenizer=self.tokenizer)
        call.finish(turn)
        self.dialogue.answered(call, prompt, answer, ended=not cut)
        self.asked.append((prompt, call))
        return prompt

    def rendered(self, messages: list[Message], tools: Any = None) -> list[int]:
        """The token ids that a server of chat requests would make of a conversation."""
        text = self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **self.arguments
        )
        return self.tokenizer.encode(text, add_special_tokens=False)

    def audit(self) -> list[Sample]:
        """Every token of a delivered reply is trained once, as it was sampled and behind the prompt that the engine saw."""
        samples = self.trajectory.samples(Sample())
        found: dict[float, tuple[int, tuple[int, ...]]] = {}
        for sample in samples:
            sample.to_columns()
            sample.validate()
            start = len(sample.tokens) - sample.response_length
            for place in np.flatnonzero(np.asarray(sample.loss_mask)).tolist():
                logprob = sample.rollout_log_probs[place]
                assert logprob not in found, "a token is trained twice"
                found[logprob] = (sample.tokens[start + place], tuple(sample.tokens[: start + place]))
        wanted = {}
        for prompt, held in self.asked:
            if held.delivered:
                for place, token in enumerate(held.turn.output_ids):
                    before = (*prompt.ids, *held.turn.output_ids[:place])
                    wanted[held.turn.logprobs[place]] = (token, before)
        assert found == wanted
        return samples


def test_a_conversation_with_tools_is_one_sequence_and_its_prompts_are_the_templates(tokenizer: Any):
    played = Played(tokenizer)
    messages = [SYSTEM, user("Who?")]
    for number in range(4):
        prompt = played.ask(messages, reply(f"r{number}", thinks="Hm.", calls=("a", "b")), tools=TOOLS)
        assert prompt.ids == played.rendered(messages, TOOLS)
        said = played.asked[-1][1].message
        messages = [*messages, said, *(result(call["id"], f"found {number}") for call in said["tool_calls"])]
    assert len(played.audit()) == 1 and not played.dialogue.statistics.forks


def test_the_response_of_a_reply_that_only_calls_a_tool_is_the_call(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("Who?")], reply(calls=("a",)), tools=TOOLS)
    (sample,) = played.trajectory.samples(Sample())
    assert sample.response.startswith("<tool_call>") and '"query": "a"' in sample.response


def test_results_of_parallel_calls_stand_in_the_order_of_the_calls(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("Who?")], said := reply("r", calls=("a", "b")), tools=TOOLS)
    results = [result("r-0", "first"), result("r-1", "second")]
    prompts = [played.dialogue.prompt([user("Who?"), said, *order], TOOLS) for order in (results, results[::-1])]
    assert prompts[0].ids == prompts[1].ids == played.rendered([user("Who?"), said, *results], TOOLS)


def test_where_the_template_drops_thinking_a_root_begins_with_what_it_shows(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("1?")], one := reply("one", thinks="Hm."))
    messages = [user("1?"), one, user("2?")]
    prompt = played.ask(messages, reply("two", thinks="Ah."))
    assert prompt.parent is None and prompt.cause == THINKING_DROPPED and prompt.kind == MAIN
    assert prompt.ids == played.rendered(messages)
    assert played.dialogue.statistics.forks == {THINKING_DROPPED: 1}
    assert [sample.metadata["cause"] for sample in played.audit()] == ["", THINKING_DROPPED]


def test_a_client_that_drops_reasoning_goes_on_from_the_same_tokens(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("1?")], said := reply("one", thinks="Hm.", calls=("a",)), tools=TOOLS)
    forgetful = {key: value for key, value in said.items() if key != "reasoning_content"}
    prompt = played.ask([user("1?"), forgetful, result("one-0", "x")], reply("two"), tools=TOOLS)
    assert prompt.parent is played.asked[0][1]
    edited = {**said, "reasoning_content": "Something else."}
    assert played.ask([user("1?"), edited, result("one-0", "x")], reply("three"), tools=TOOLS).parent is None
    played.audit()


def test_arguments_count_as_json_and_texts_as_they_are(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("1?")], said := reply("one", calls=("a",)), tools=TOOLS)
    function = {"name": "search", "arguments": '{ "query" :"a"}'}
    spaced = {**said, "tool_calls": [{**said["tool_calls"][0], "function": function}]}
    assert played.dialogue.prompt([user("1?"), spaced, result("one-0", "x")], TOOLS).parent is not None
    shouted = {**said, "content": "ONE"}
    assert played.dialogue.prompt([user("1?"), shouted, result("one-0", "x")], TOOLS).parent is None


def with_arguments(message: Message, *arguments: str) -> Message:
    """The reply with other arguments of its calls."""
    calls = [
        {**call, "function": {**call["function"], "arguments": text}} for call, text in zip(message["tool_calls"], arguments)
    ]
    return {**message, "tool_calls": calls}


def test_arguments_that_a_client_completes_or_trims_do_not_make_another_reply(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("1?")], said := reply("one", thinks="Hm.", calls=("a  \n",)), tools=TOOLS)
    completed = with_arguments(said, '{"all": false, "query": "a\\n"}')
    prompt = played.ask([user("1?"), completed, result("one-0", "x")], reply("two"), tools=TOOLS)
    assert prompt.parent is played.asked[0][1] and prompt.ids == played.rendered([user("1?"), said, result("one-0", "x")], TOOLS)
    assert len(played.audit()) == 1 and not played.dialogue.statistics.forks


def test_long_arguments_that_a_client_leaves_out_are_left_out_of_the_prompt(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("1?")], said := reply("one", calls=("words " * 400,)), tools=TOOLS)
    messages = [user("1?"), with_arguments(said, '{"query": "[left out]"}'), result("one-0", "x")]
    prompt = played.ask(messages, reply("two"), tools=TOOLS)
    assert prompt.parent is None and prompt.ids == played.rendered(messages, TOOLS)
    played.audit()


def test_changed_arguments_are_another_conversation_where_several_replies_have_the_same_ids(tokenizer: Any):
    played = Played(tokenizer)
    for query in ("a", "b"):
        played.ask([user("1?")], reply("one", calls=(query,)), tools=TOOLS)
    for query, parent in (("a", 0), ("b", 1)):
        prompt = played.ask([user("1?"), reply("one", calls=(query,)), result("one-0", "x")], reply("two"), tools=TOOLS)
        assert prompt.parent is played.asked[parent][1]
    assert played.dialogue.prompt([user("1?"), reply("one", calls=("c",)), result("one-0", "x")], TOOLS).parent is None
    played.audit()


def test_branches_after_one_reply_are_counted_by_their_cause(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("1?")], said := reply("one"))
    for question in ("2?", "2?", "3?"):
        played.ask([user("1?"), said, user(question)], reply(f"two to {question}"))
    assert played.dialogue.statistics.forks == {RETRY: 1, EDITED: 1}
    assert len(played.audit()) == 3


def test_a_reply_that_was_cut_is_continued_token_by_token(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("1?")], reply("one"), cut=True)
    first = played.asked[0][1]
    prompt = played.ask([user("1?"), reply("one")], reply(" two"))
    assert prompt.ids == [*played.asked[0][0].ids, *first.turn.output_ids]
    goes_on = played.dialogue.prompt([user("1?"), reply("one two"), user("2?")])
    assert goes_on.parent is played.asked[1][1]
    assert played.dialogue.prompt([user("1?"), reply("one"), user("2?")]).parent is first
    assert len(played.audit()) == 1


def test_kinds_say_what_a_branch_is(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([SYSTEM, user("1?")], one := reply("one"))
    played.ask([SYSTEM, user("1?"), one, user("2?")], two := reply("two"))
    played.ask([SYSTEM, user("1?"), one, user("2?")], reply("zwei"))
    played.ask([{"role": "system", "content": "You explore."}, user("1?")], reply("found"))
    played.ask([SYSTEM, user("So far: one.")], reply("three"))
    assert [held.kind for _, held in played.asked] == [MAIN, MAIN, RETRY, SUBAGENT, COMPACTED]
    assert [sample.metadata["kind"] for sample in played.audit()] == [MAIN, RETRY, SUBAGENT, COMPACTED]
    assert two["content"] == "two"


def test_what_nobody_received_is_context_only(tokenizer: Any):
    played = Played(tokenizer)
    played.ask([user("1?")], one := reply("one"))
    played.ask([user("1?"), one, user("2?")], reply("lost"))
    played.asked[1][1].delivered = False
    samples = played.audit()
    assert len(samples) == 1 and samples[0].response_length == len(played.asked[0][1].turn.output_ids)


def test_old_text_is_tokenized_once_even_where_the_template_rewrites(tokenizer: Any):
    played = Played(tokenizer)
    document = "some words of a long document " * 200
    messages = [SYSTEM, user(document)]
    for number in range(5):
        played.ask(messages, said := reply(f"r{number}", thinks="Hm."))
        messages = [*messages, said, user(f"and {number}?")]
    statistics = played.dialogue.statistics
    assert sum(statistics.forks.values()) == 4
    assert statistics.num_encoded_tokens < len(played.asked[-1][0].ids) + 100 < statistics.num_prompt_tokens


def test_a_template_that_always_rewrites_forks_each_turn_unless_tokens_shall_be_kept(tokenizer: Any):
    for fork, num_samples in ((True, 3), (False, 1)):
        played = Played(tokenizer, fork=fork, enable_thinking=False)
        messages = [user("1?")]
        for number in range(3):
            played.ask(messages, said := reply(f"r{number}"))
            messages = [*messages, said, user("more?")]
        assert len(played.audit()) == num_samples
        assert sum(played.dialogue.statistics.kept.values()) == (0 if fork else 2)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whatever_a_client_does_every_sampled_token_is_trained_once(tokenizer: Any, seed: int):
    """Siblings, sub-agents, compaction, dropped thinking, shuffled results, cut replies, lost answers, forged control tokens."""
    draw = random.Random(seed)
    played = Played(tokenizer, enable_thinking=draw.random() < 0.8)
    histories: list[list[Message]] = [[SYSTEM, user("begin")]]
    for number in range(draw.randint(2, 8)):
        history = draw.choice(histories)
        text = "".join(draw.choice(WORDS) for _ in range(draw.randint(0, 6)))
        plain = text.replace("<|im_end|>", "").replace("<think>", "").replace("</tool_call>", "")
        calls = tuple(f"q{place}" for place in range(draw.choice((0, 0, 1, 2))))
        said = reply(f"{number}{plain}", thinks=draw.choice(("", "Hm.")), calls=calls)
        played.ask(history, said, cut=draw.random() < 0.2, tools=TOOLS)
        played.asked[-1][1].delivered = draw.random() < 0.9
        results = [result(call["id"], text) for call in said.get("tool_calls", ())]
        draw.shuffle(results)
        histories.append([*history, said, *(results or [user(text or "and?")])])
        if draw.random() < 0.2:
            histories.append([SYSTEM, user(f"summary of {number}")])
        if draw.random() < 0.2:
            histories.append([{"role": "system", "content": f"sub-agent {number}"}, user(text or "go")])
        if draw.random() < 0.1 and played.asked[-1][1].ended is False:
            histories.append([*history, said])
    samples = played.audit()
    assert all(sample.metadata["kind"] for sample in samples)


def test_arguments_that_could_not_be_written_again_count_as_text(tokenizer: Any):
    deep = '{"a":' * 300 + "1" + "}" * 300
    assert parsed(deep) == deep and parsed('{"a": {"b": 1}}') == {"a": {"b": 1}}
    played = Played(tokenizer)
    played.ask([user("1?")], said := with_arguments(reply("one", calls=("a",)), deep), tools=TOOLS)
    del said["tool_calls"][0]["id"]
    assert played.dialogue.prompt([user("1?"), said, result("", "x")], TOOLS).ids


IN_USER = """{{ bos_token }}{% set first = messages[0].content + ' ' if messages[0].role == 'system' else '' %}
{%- for message in messages if message.role == 'user' %}<user>{{ first }}{{ message.content | trim }}{% endfor %}"""
WITH_USER = """{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('No user query found') }}
{%- endif %}{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"""
TURNS = {"": "<|im_start|>system\n7 it is\n<|im_end|>\n", IN_USER: "<user>7 it is", WITH_USER: "<user>7 it is\n"}


@pytest.mark.parametrize("template", TURNS)
def test_a_text_ahead_of_a_conversation_is_a_turn_that_its_template_shows(template: str):
    """As Qwen3's template shows a system message alone, Gemma 3's within that of a user, and Qwen3.5's with that of a user."""
    tokenizer = copy.copy(qwen3_tokenizer())  # whose template other tests need
    tokenizer.chat_template = template or tokenizer.chat_template
    assert turn_ahead(tokenizer, "7 it is\n").removeprefix(tokenizer.bos_token or "") == TURNS[template]
    tokenizer.chat_template = "{{ raise_exception('not here') }}" if template else "nothing"
    with pytest.raises(TemplateError, match="neither"):
        turn_ahead(tokenizer, "7 it is")
