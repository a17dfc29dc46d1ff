"""Rows of pairs: what is learned of them, in which order, and which rows are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

import agentic.memagent
from vime.config import RunConfig
from vime.data.preferences import PreferenceRows
from vime.errors import ConfigError
from vime.model.load_tokenizer import load_tokenizer

TINY = Path(agentic.memagent.__file__).parent / "tiny" / "actor"
TOKENIZER = load_tokenizer(TINY)
TALK = [{"role": "user", "content": "owner ?"}, {"role": "assistant", "content": "Abnus"}, {"role": "user", "content": "home ?"}]


def rows_of(folder: Path, *rows: Any, **settings: Any) -> PreferenceRows:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RunConfig(seed=settings.pop("seed", 0))
    config.data.train.path, config.rollout.num_prompts = str(folder / "pairs.jsonl"), 2
    config.model.max_position_embeddings = settings.pop("longest", 512)
    return PreferenceRows(config, TOKENIZER)


def learned(sample: Any) -> str:
    return TOKENIZER.decode([token for token, kept in zip(sample.tokens[-len(sample.loss_mask) :], sample.loss_mask) if kept])


def row(number: int) -> dict[str, str]:
    return {"prompt": "home ?", "chosen": f"good {number}", "rejected": f"bad {number} too"}


def test_only_the_reply_and_its_end_are_learned_in_whichever_form_a_row_is(tmp_path: Path):
    def reply(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    forms = [
        {"prompt": TALK, "chosen": "yes", "rejected": "no"},
        {"prompt": TALK, "chosen": reply("yes"), "rejected": reply("no")},
        {"chosen": [*TALK, *reply("yes")], "rejected": [*TALK, *reply("no")]},
        {"prompt": TALK, "chosen": [*TALK, *reply("yes")], "rejected": [*TALK, *reply("no")]},
    ]
    found = [rows_of(tmp_path, form)(TOKENIZER, 0, 1, 0, 0)[:2] for form in forms]
    assert all([list(s.tokens) for s in pair] == [list(s.tokens) for s in found[0]] for pair in found)
    chosen, rejected = found[0]
    assert (chosen.seat, rejected.seat) == ("chosen", "rejected") and chosen.pair == rejected.pair
    end = TOKENIZER.eos_token
    assert [learned(each).replace(" ", "") for each in (chosen, rejected)] == [f"yes{end}", f"no{end}"]


def test_an_epoch_has_every_pair_once_and_depends_on_the_seed_alone(tmp_path: Path):
    rows = [row(number) for number in range(6)]

    def drawn(seed: int) -> list[str]:
        made = rows_of(tmp_path, *rows, seed=seed)
        return [learned(sample) for step in range(3) for sample in made(TOKENIZER, step, 3, 0, 0) if sample.seat == "chosen"]

    assert len(set(drawn(0))) == 6 and drawn(0) == drawn(0) != drawn(1)
    batch = rows_of(tmp_path, *rows)(TOKENIZER, 5, 9, 0, 0)
    assert [(each.rollout_id, each.order) for each in batch] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {each.columns["weight"] for each in batch} == {0.5}


@pytest.mark.parametrize(
    "wrong",
    [{"prompt": "q", "chosen": "a"}, {"chosen": "a", "rejected": "b"}, {"prompt": "q", "chosen": [], "rejected": "b"}],
)
def test_a_row_that_is_no_pair_is_named(tmp_path: Path, wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match="row 1 is no pair"):
        rows_of(tmp_path, row(0), wrong)


def test_a_row_longer_than_the_model_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"row 0 has \d+ tokens"):
        rows_of(tmp_path, row(0), longest=4)
