"""The tiny coding task: its repositories, its demonstrations, its tokenizer and the shipped model."""

import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

import agentic.coding
from agentic.coding import tools
from agentic.coding.task import Task
from agentic.coding.tiny import demonstrations
from agentic.coding.tiny import task as tiny_task
from agentic.coding.tiny.demonstrations import Play
from agentic.coding.tiny.functions import KINDS
from agentic.coding.tiny.model import build_tokenizer
from agentic.coding.tiny.task import Repository
from agentic.coding.tools import RepositoryTools
from vime.agent.workspace import Workspace, prepare
from vime.config import WorkspaceConfig
from vime.model.load_tokenizer import load_tokenizer
from vime.tiny.demonstration import encode_conversation

ACTOR = Path(agentic.coding.__file__).parent / "tiny" / "actor"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(ACTOR)


def failing(row: dict[str, Any], sources: dict[str, str]) -> set[str]:
    """The hidden tests of a row that fail on these files."""
    found: set[str] = set()
    for path, text in row["tests"].items():
        module = path.removeprefix("tests/test_").removesuffix(".py")
        package, own = ModuleType("src"), ModuleType(f"src.{module}")
        exec(sources[tiny_task.path_of(module)], own.__dict__)
        kept = {name: sys.modules.get(name) for name in ("src", own.__name__)}
        sys.modules |= {"src": package, own.__name__: own}
        names: dict[str, Any] = {}
        exec(text, names)
        for name in kept:
            del sys.modules[name]
        for name in [name for name in names if name.startswith("test_")]:
            try:
                names[name]()
            except AssertionError:
                found.add(f"{path}::{name}")
    return found


def repaired(row: dict[str, Any], repository: Repository) -> dict[str, str]:
    """The files with the right line in the place of the wrong one."""
    files = dict(row["files"])
    wrong, right = f"    {repository.broken.wrong}\n", f"    {repository.broken.code}\n"
    assert files[repository.path].count(wrong) == 1
    files[repository.path] = files[repository.path].replace(wrong, right)
    return files


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), split=st.sampled_from(("train", "eval")))
def test_the_bug_fails_its_own_test_alone_and_the_right_line_mends_it(seed: int, split: Any):
    repository = tiny_task.sample_repository(random.Random(seed), split=split)
    row = repository.row()
    assert failing(row, row["files"]) == set(row["fail_to_pass"])
    assert failing(row, repaired(row, repository)) == set()
    task = Task.of({"problem_statement": row["prompt"], **row})
    assert set(task.test_ids) == {*row["fail_to_pass"], *row["pass_to_pass"]} and len(task.test_ids) == 9
    described = [text for path, text in row["files"].items() if path.startswith("docs/")]
    assert sum(f"{repository.broken.name}: {repository.broken.document}\n" in text for text in described) == 1


def test_the_evaluation_has_names_and_positions_that_training_never_has():
    found: dict[str, tuple[set[str], set[Any]]] = {}
    for split in ("train", "eval"):
        drawn = [tiny_task.sample_repository(random.Random(f"{split}{number}"), split=split) for number in range(600)]
        found[split] = {one.broken.name for one in drawn}, {one.position for one in drawn}
        assert {one.position.kind for one in drawn} == set(KINDS)
    for train, held_out in zip(*found.values(), strict=True):
        assert len(held_out) > 30 and not train & held_out


def test_rows_are_deterministic_and_no_task_comes_twice():
    rows = tiny_task.generate_rows(split="eval", num_items=200, seed=1)
    assert rows == tiny_task.generate_rows(split="eval", num_items=200, seed=1)
    assert rows != tiny_task.generate_rows(split="eval", num_items=200, seed=2)
    assert len({row["instance_id"] for row in rows}) == 200


async def test_what_demonstrations_show_is_what_a_workspace_answers(tmp_path: Path):
    rng, num_calls = random.Random(0), 0
    for _ in range(4):
        play = Play(repository=tiny_task.sample_repository(rng, split="train"))
        play.begin()
        play.find_code()
        play.find_document()
        play.list_files()
        play.edit_in_vain()
        play.edit(play.function.code)
        play.submit()
        prepared = prepare(play.repository.files(), cache_folder=tmp_path)
        async with Workspace.open(prepared, WorkspaceConfig(), binds={}, environment={}) as box:
            names = tuple(tool["function"]["name"] for tool in tools.ALL)
            toolbox = RepositoryTools(box=box, offered=names, command_seconds=20.0, result_characters=1000)
            for said, shown in zip(play.messages[2::2], play.messages[3::2], strict=True):
                call = json.loads(said["content"].removeprefix("<tool_call>").removesuffix("</tool_call>"))
                function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
                (result,) = await toolbox.results([{"id": "1", "function": function}])
                assert result["content"] == shown["content"]
                num_calls += 1
    assert num_calls == 24


def test_a_guess_never_needs_the_document_and_is_rarely_right():
    rng, right = random.Random(0), 0
    for _ in range(600):
        function = tiny_task.sample_repository(rng, split="eval").broken
        right += demonstrations.guess(function, rng) == function.code
    assert 0.1 < right / 600 < 0.5


def test_the_model_is_shown_the_skill_first_and_bad_habits_last():
    def share_of_solutions(has_habits: bool) -> float:
        rng, solved = random.Random(0), 0
        for _ in range(400):
            shown = demonstrations.conversations(rng, has_habits=has_habits)
            text = "".join(str(message["content"]) for dialogue in shown for message in dialogue.messages)
            solved += text.count('"name": "edit"') == 1 and ('"explore"' in text or "docs" in text)
        return solved / 400

    assert share_of_solutions(False) > 0.8 > 0.5 > share_of_solutions(True)


def test_the_shipped_tokenizer_is_the_one_that_the_builder_makes(tokenizer: PreTrainedTokenizerBase):
    built = build_tokenizer()
    assert built.get_vocab() == tokenizer.get_vocab() and built.chat_template == tokenizer.chat_template


def test_every_word_of_a_held_out_task_is_one_token(tokenizer: PreTrainedTokenizerBase):
    rng = random.Random(0)
    for _ in range(30):
        play = Play(repository=tiny_task.sample_repository(rng, split="eval"))
        play.begin()
        play.find_code()
        play.find_document()
        play.edit(play.function.code)
        text = "".join(str(message["content"]) for message in play.messages)
        pieces = [str(tokenizer.decode([token])) for token in tokenizer(text)["input_ids"]]
        assert not [piece for piece in pieces if len(piece) == 1 and piece.isalpha()]


def test_a_batch_depends_on_seed_and_step_and_learns_replies_only(tokenizer: PreTrainedTokenizerBase):
    first, again, other = (demonstrations.demonstrations(tokenizer, step, 100, 1000, 0) for step in (3, 3, 4))
    assert first == again and first != other
    assert sum(sample.columns["weight"] * sum(sample.loss_mask) for sample in first) == pytest.approx(1.0)
    dialogue = demonstrations.conversations(random.Random(1), has_habits=False)[-1]
    encoded = encode_conversation(dialogue, tokenizer=tokenizer)
    learned = [token for token, mask in zip(encoded.token_ids, encoded.loss_mask, strict=True) if mask]
    texts = str(tokenizer.decode(learned)).split("<|im_end|>")[:-1]
    assert texts == [message["content"] for message in dialogue.messages if message["role"] == "assistant"]
