"""Words are found in scripts without blanks and in every form of a letter, and an index of another rule is built anew."""

import json
import unicodedata
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.config import RetrievalBackend, RetrievalConfig
from vime.retrieval.index import MANIFEST, Index, open_index
from vime.retrieval.word_splitting import folded, words_of

PASSAGES = {
    "paris": "巴黎是法国的首都、位于塞纳河畔。",
    "tokyo": "日本の首都は東京です。人口は約千四百万人です。",
    "kyoto": "京都は日本の古い都です。ｶﾀｶﾅもあります。",
    "bangkok": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย",
    "chiang_mai": "เชียงใหม่อยู่ทางเหนือ",
    "vientiane": "ວຽງຈັນເປັນນະຄອນຫຼວງຂອງລາວ",
    "phnom_penh": "ភ្នំពេញជារដ្ឋធានីនៃកម្ពុជា",
    "delhi": "दिल्ली भारत की राजधानी है",
    "seoul": "서울은 대한민국의 수도이다",
    "zurich": "Zürich is the largest city of Switzerland, in the Straße.",
    "ada": "She wrote the first program.",
}
QUERIES = {
    "法国首都": "paris",
    "塞纳河": "paris",
    "東京の人口": "tokyo",
    "日本の首都": "tokyo",
    "京都": "kyoto",
    "カタカナ": "kyoto",
    "เมืองหลวงของประเทศไทย": "bangkok",
    "เชียงใหม่": "chiang_mai",
    "ນະຄອນຫຼວງ": "vientiane",
    "កម្ពុជា": "phnom_penh",
    "राजधानी": "delhi",
    "대한민국의": "seoul",
    "ZÜRICH": "zurich",
    "STRASSE": "zurich",
    "\uff46\uff49\uff52\uff53\uff54 program": "ada",
}


FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")


def silent(phase: str, done: int, total: int) -> None:
    """Discards reports of progress."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("words") / "passages.jsonl"
    rows = [{"id": name, "title": "", "text": text} for name, text in PASSAGES.items()]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def indexes(corpus: Path) -> dict[RetrievalBackend, Index]:
    configs = [RetrievalConfig(corpus=str(corpus), backend=backend) for backend in RetrievalBackend]
    return {config.backend: open_index(config, corpus.parent / config.backend.value, silent) for config in configs}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("query", QUERIES)
def test_a_word_is_found_in_every_script_and_form(
    indexes: dict[RetrievalBackend, Index], query: str, form: Literal["NFC", "NFD"]
):
    asked = unicodedata.normalize(form, query)
    found = {backend: [document.id for document, _ in index.search([asked], 3)[0]] for backend, index in indexes.items()}
    assert found[RetrievalBackend.bm25][0] == QUERIES[query]
    assert QUERIES[query] in found[RetrievalBackend.faiss], "hashing is approximate: among the first three"


def test_a_passage_in_decomposed_letters_is_found_as_well(tmp_path: Path):
    file = tmp_path / "passages.jsonl"
    rows = [{"id": "a", "text": unicodedata.normalize("NFD", "Zürich 서울")}, {"id": "b", "text": "Zurich"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = open_index(RetrievalConfig(corpus=str(file)), tmp_path / "index", silent).search(["Zürich", "서울", "zurich"], 1)
    assert [passages[0][0].id for passages in found] == ["a", "a", "b"]


def test_an_index_of_another_rule_is_built_anew(corpus: Path, tmp_path: Path):
    for backend in RetrievalBackend:
        config, folder = RetrievalConfig(corpus=str(corpus), backend=backend), tmp_path / backend.value
        open_index(config, folder, silent)
        manifest = json.loads((folder / MANIFEST).read_text())
        del manifest["words"]  # as the first rule left it
        (folder / MANIFEST).write_text(json.dumps(manifest))
        open_index(config, folder, silent)
        assert "words" in json.loads((folder / MANIFEST).read_text())


@given(st.text())
def test_words_are_the_same_in_every_normal_form_and_each_is_in_the_text(text: str):
    whole = folded(text)
    words = words_of(whole)
    assert all(word and word in whole for word in words)
    assert words == words_of(folded(whole))
    clean = text.encode(errors="replace").decode()
    assert words_of(folded(unicodedata.normalize("NFD", clean))) == words_of(folded(unicodedata.normalize("NFC", clean)))


@given(st.text(st.characters(codec="ascii")))
def test_words_of_english_are_letters_digits_and_underscores_in_small_letters(text: str):
    cleaned = "".join(character if character.isalnum() or character == "_" else " " for character in text)
    assert words_of(folded(text)) == cleaned.lower().split()
