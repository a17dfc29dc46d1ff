"""Bytes of tokens: the text of any ids is what the tokenizer decodes, with its control tokens."""

import random
from pathlib import Path

import pytest

from vime.model.load_tokenizer import load_tokenizer
from vime.model.pieces import TokenPieces

CHECKPOINTS = sorted(Path(__file__).parents[2].glob("agentic/*/tiny/*/tokenizer.json"))


@pytest.mark.parametrize(
    "checkpoint", [file.parent for file in CHECKPOINTS], ids=lambda folder: f"{folder.parts[-3]}-{folder.name}"
)
def test_texts_equal_those_of_the_tokenizer(checkpoint: Path):
    tokenizer, pieces = load_tokenizer(checkpoint), TokenPieces.of(checkpoint)
    assert pieces is not None
    random_ids = random.Random(0)
    for _ in range(200):
        ids = [random_ids.randrange(len(tokenizer)) for _ in range(random_ids.randrange(20))]
        expected = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert pieces.text(ids) == expected


def test_a_character_of_several_tokens_is_whole_in_the_text_and_bytes_in_the_pieces():
    pieces = TokenPieces([b"\xe2\x82", b"\xac", b" a"])
    assert pieces.text([0, 1, 2]) == "€ a" and pieces.text([0]) == "\N{REPLACEMENT CHARACTER}"
    assert pieces.bytes_of([1, 7]) == [b"\xac", b""], "an id that the vocabulary has not"
    assert TokenPieces.from_list(pieces.to_list()).bytes_of([0, 1, 2]) == [b"\xe2\x82", b"\xac", b" a"]


def test_a_checkpoint_without_a_vocabulary_of_bytes_has_no_pieces(tmp_path: Path):
    assert TokenPieces.of(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {"a": 0}}, "decoder": null}')
    assert TokenPieces.of(tmp_path) is None
