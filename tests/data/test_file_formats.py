"""A file of rows is read as what it is, in every case of its ending, compression and encoding, or refused by name."""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from backports import zstd

from vime.config import DatasetConfig, RunConfig
from vime.data.dataset import load_rows
from vime.data.file_formats import KINDS, kind_of
from vime.errors import ConfigError
from vime.preflight.rules.machine_requirements import files

ROWS = [{"question": "Größe, 'x'?", "answer": "007"}, {"question": "日本\u2028語\n?", "answer": "1e5"}]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".BZ2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
LIST = json.dumps(ROWS, ensure_ascii=False, indent=1)


def cells(delimiter: str) -> str:
    """The rows as CSV, every cell in quotes."""
    table = [list(ROWS[0]), *(list(row.values()) for row in ROWS)]
    return "\r\n".join(delimiter.join(f'"{cell}"' for cell in line) for line in table) + "\r\n"


def parquet(table: pyarrow.Table | list[dict[str, Any]]) -> bytes:
    """The bytes of a Parquet file."""
    content = io.BytesIO()
    pyarrow.parquet.write_table(table if isinstance(table, pyarrow.Table) else pyarrow.Table.from_pylist(table), content)
    return content.getvalue()


def load(file: Path, content: bytes) -> list[dict[str, Any]]:
    """The rows of a file with this content."""
    file.write_bytes(content)
    return load_rows(DatasetConfig(name="dev", path=str(file)), key="data.evaluation.0")


def refused(file: Path, content: bytes) -> str:
    """The reason why a file with this content is refused; the problem has the key of its data set and the file."""
    with pytest.raises(ConfigError) as raised:
        load(file, content)
    (problem,) = raised.value.problems
    assert (problem.key, problem.value) == ("data.evaluation.0.path", str(file))
    return problem.remedy


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", LINES),
        ("rows.JSONL", LINES.replace("\n", "\r\n\r\n")),
        ("rows.ndjson", LINES.rstrip()),
        ("rows.json", LINES),
        ("rows.json", f"\n{LIST}"),
        ("my.rows.Json", LIST),
        ("rows.csv", cells(",")),
        ("rows.TSV", cells("\t")),
    ],
)
def test_a_text_is_read_in_every_compression_and_encoding(tmp_path: Path, name: str, text: str, encoding: str, compression: str):
    assert load(tmp_path / f"{name}{compression}", COMPRESSIONS[compression](text.encode(encoding))) == ROWS


@pytest.mark.parametrize("name", ["rows.parquet", "ROWS.PARQUET", "rows.jsonl", "rows.csv.gz"])
def test_parquet_is_known_by_its_content(tmp_path: Path, name: str):
    assert load(tmp_path / name, parquet(ROWS)) == ROWS


def test_what_is_compressed_under_a_plain_name_is_read_and_the_other_way_round(tmp_path: Path):
    assert load(tmp_path / "rows.jsonl", gzip.compress(LINES.encode())) == ROWS
    assert load(tmp_path / "rows.jsonl.gz", LINES.encode()) == ROWS


WHOLE = parquet([{"question": f"q{number}", "answer": "a"} for number in range(1000)])
TWICE = parquet(pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["question", "question"]))
NO_ROWS = parquet(pyarrow.table({"question": pyarrow.array([], pyarrow.string())}))
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        *((f"rows{ending}", POINTER, "is a pointer of Git LFS") for ending in KINDS),
        *((f"rows{ending}", b"", "is empty") for ending in KINDS),
        ("rows.jsonl.gz", gzip.compress(b""), "is empty"),
        ("rows.jsonl", b"\n \n", "has no rows"),
        ("rows.csv", b"question,answer\n", "has no rows"),
        ("rows.json", b"[]", "has no rows"),
        ("rows.parquet", NO_ROWS, "has no rows"),
        ("rows.parquet", WHOLE[: len(WHOLE) // 2], "cannot be read as Parquet"),
        ("rows.parquet", WHOLE[:200] + bytes(200) + WHOLE[400:], "cannot be read (OSError: Corrupt"),
        ("rows.parquet", LINES.encode(), "cannot be read as Parquet"),
        ("rows.parquet", TWICE, "has several columns named 'question'"),
        ("rows.csv", b"a,question,a\n1,2,3\n", "has several columns named 'a'"),
        ("rows.csv", b"question,answer\nq,a\nq,a,b\n", "line 3 of rows.csv has 3 cells for the 2 columns"),
        ("rows.csv", b'question,answer\n"q\nq",a\nq\n', "line 4 of rows.csv has 1 cells for the 2 columns"),
        ("rows.csv", b'question,answer\nq,"a\n', "line 2 of rows.csv is no CSV: unexpected end of data"),
        ("rows.tsv", "question\tanswer\nGröße\ta\n".encode("latin-1"), "line 2 of rows.tsv is no UTF-8"),
        ("rows.jsonl.gz", gzip.compress(LINES.encode())[:-20], "cannot be read (EOFError"),
        ("rows.jsonl.xz", lzma.compress(LINES.encode())[:-20], "cannot be read (EOFError"),
        ("rows.jsonl.bz2", bz2.compress(LINES.encode())[:-20], "cannot be read (EOFError"),
        ("rows.jsonl.zst", zstd.compress(LINES.encode())[:-5], "cannot be read (EOFError"),
        ("rows.jsonl", gzip.compress(LINES.encode())[:20] + bytes(30), "cannot be read"),
        ("rows.json", json.dumps({"question": "q"}, indent=1).encode(), "line 1 of rows.json is no JSON"),
        ("rows.jsonl", b"<!DOCTYPE html>", "line 1 of rows.jsonl is no JSON"),
        ("rows.jsonl", b"[" * 100_000, "line 1 of rows.jsonl is no JSON that can be read: RecursionError"),
        ("rows.jsonl", b'{"answer": ' + b"7" * 5000 + b"}", "line 1 of rows.jsonl is no JSON that can be read"),
        ("rows.jsonl", b"PK\x03\x04....", "is a zip archive"),
        ("rows.xlsx", b"PK\x03\x04....", "ending that says nothing of its kind: use one of .jsonl, .ndjson, .json, .csv"),
        ("rows.txt", LINES.encode(), "ending that says nothing of its kind"),
        ("rows.tar.gz", gzip.compress(LINES.encode()), "ending that says nothing of its kind"),
        ("rows", LINES.encode(), "ending that says nothing of its kind"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",  # gzip writes the time into its head
)
def test_what_holds_no_rows_is_refused_with_the_key_and_the_reason(tmp_path: Path, name: str, content: bytes, reason: str):
    assert reason in refused(tmp_path / name, content)


@pytest.mark.parametrize("name", ["folder.jsonl", "pipe.jsonl", "absent.NDJSON"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str):
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    reason = {"folder.jsonl": "is a folder", "pipe.jsonl": "is a device or pipe", "absent.NDJSON": "No such file"}[name]
    with pytest.raises(ConfigError, match=reason):
        load_rows(DatasetConfig(path=str(tmp_path / name)))


def test_a_folder_that_is_no_data_set_is_not_taken_for_an_id(tmp_path: Path):
    (tmp_path / "rows").mkdir()
    with pytest.raises(ConfigError, match="is a folder that cannot be loaded as a data set"):
        load_rows(DatasetConfig(path=str(tmp_path / "rows")))


@pytest.mark.parametrize("name", ["rows.JSONL", "rows.ndjson", "rows.jsonl.gz", "rows.csv", "rows.tsv.zst", "rows.PARQUET"])
def test_a_missing_file_of_any_such_name_is_a_problem_of_the_plan(name: str):
    config = RunConfig()
    config.data.train.path = name
    (problem,) = files(config)
    assert problem.key == "data.train.path" and "there is no such file" in problem.remedy


@pytest.mark.parametrize(("path", "kind"), [("owner/name", None), ("owner/name.v2", None), ("a.b/c.json.gz", ".json")])
def test_an_id_of_hugging_face_is_no_file_of_rows(path: str, kind: str | None):
    assert kind_of(path) == kind


def test_only_the_rows_that_are_taken_are_read(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text(LINES + "no row\n")
    assert load_rows(DatasetConfig(path=str(file), num_items=2)) == ROWS


def test_values_of_parquet_are_pythons(tmp_path: Path):
    row = {"question": "q", "answer": [1, 2], "price": Decimal("1.50"), "day": datetime(2026, 1, 2), "extra_info": {"index": 7}}
    assert load(tmp_path / "rows.parquet", parquet([row])) == [row]


def test_parquet_needs_no_home(tmp_path: Path):
    (tmp_path / "rows.parquet").write_bytes(parquet(ROWS))
    program = "from vime.config import DatasetConfig\nfrom vime.data.dataset import load_rows\n"
    program += "import sys\nprint(len(load_rows(DatasetConfig(path=sys.argv[1]))), 'datasets' in sys.modules)"
    command = [sys.executable, "-c", program, str(tmp_path / "rows.parquet")]
    shown = subprocess.run(command, env={**os.environ, "HOME": "/proc/none"}, capture_output=True, text=True, timeout=60)
    assert shown.stdout.split() == ["2", "False"], shown.stderr
