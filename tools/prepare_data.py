"""Downloads a data set of tools/datasets.yaml, checks and cleans it, and writes it as JSON lines with a manifest.

    python tools/prepare_data.py --list
    python tools/prepare_data.py dapo_math_17k aime_2024
    python tools/prepare_data.py hotpotqa_dev --from downloads/validation.parquet     # local files, no network
    python tools/prepare_data.py quixbugs human_eval exercism_python                  # coding tasks, each verified in a workspace

Files come from a pinned revision where one is known, and known checksums are compared. Every row is checked against the schema,
duplicates are removed, and questions that training and evaluation sets in the same folder share are reported. `data.train.path`
takes NAME.jsonl; NAME.manifest.json holds source, revision, checksums and counts. prepare_tasks.py makes coding tasks,
made_rows.py sets from others, which are prepared before.
"""

import argparse
import fnmatch
import hashlib
import json
import urllib.error
import urllib.request
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml
from cleaned_rows import Cleaned, Recipe, SchemaError, clean, overlap, question_key
from made_rows import converted, made, source_of, sources_of
from prepare_tasks import prepare_tasks
from rich.console import Console
from rich.progress import track
from row_files import PreparationError, holds_rows

from vime.files.jsonl import read_lines, write_lines, write_text
from vime.surroundings import settle

TABLE = Path(__file__).with_name("datasets.yaml")
NOT_PINNED = "main"
TIMEOUT_SECONDS = 60.0


def read_table() -> dict[str, dict[str, Any]]:
    """The entries of the table by name."""
    return yaml.safe_load(TABLE.read_text(encoding="utf-8"))


def recipe_of(entry: dict[str, Any]) -> Recipe:
    """The part of a table's entry that says how its rows are cleaned."""
    known = {f.name for f in fields(Recipe)}
    return Recipe(**{name: value for name, value in entry.items() if name in known})


def fetch(name: str, entry: dict[str, Any], folder: Path) -> tuple[dict[str, Path], str]:
    """Downloads the entry's files and returns their paths by name, and the revision.

    Raises `PreparationError` if a file cannot be downloaded; the message names the files to give with --from.
    """
    try:
        return _from_url(entry, folder) if "url" in entry else _from_hub(entry)
    except Exception as error:  # the boundary to the network: its libraries raise errors of many kinds
        wanted = entry.get("url") or f"{', '.join(entry['files'])} of {entry['repository']} at {entry['revision']}"
        raise PreparationError(
            f"{name} cannot be downloaded ({type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}). "
            f"Check the network (and HF_TOKEN, where a repository asks for an account), or give a local copy: "
            f"--from PATH of {wanted}"
        ) from error


def _from_hub(entry: dict[str, Any]) -> tuple[dict[str, Path], str]:
    from huggingface_hub import HfApi, hf_hub_download

    repository, revision = entry["repository"], entry["revision"]
    patterns, names = [f for f in entry["files"] if "*" in f], [f for f in entry["files"] if "*" not in f]
    if patterns or revision == NOT_PINNED:
        info = HfApi().dataset_info(repository, revision=revision)
        there = sorted(sibling.rfilename for sibling in info.siblings or [])
        names += [file for file in there if any(fnmatch.fnmatch(file, pattern) for pattern in patterns) and file not in names]
        revision = info.sha or revision
    if not names:
        raise FileNotFoundError(f"{repository} has no file like {', '.join(patterns)}")
    return {file: Path(hf_hub_download(repository, file, repo_type="dataset", revision=revision)) for file in names}, revision


def _from_url(entry: dict[str, Any], folder: Path) -> tuple[dict[str, Path], str]:
    path = folder / "downloads" / hashlib.sha256(entry["url"].encode()).hexdigest()[:12] / Path(entry["url"]).name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(entry["url"], timeout=TIMEOUT_SECONDS) as answer:
            path.write_bytes(answer.read())
    return {path.name: path}, entry["revision"]


def local(paths: list[Path], wanted: list[str]) -> dict[str, Path]:
    """The given local files by name; a folder means the `wanted` files if it copies their repository, else all its files.

    Raises `PreparationError` if a path does not exist, if such a copy lacks a file, or if two files have the same name.
    """
    found: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise PreparationError(f"--from {path}: there is no such file or folder")
        if any((path / name).is_file() for name in wanted):
            if missing := [name for name in wanted if not (path / name).is_file()]:
                raise PreparationError(f"--from {path}: the copy lacks {', '.join(missing)}")
            inside = {name: path / name for name in wanted}
        else:
            files = sorted(file for file in path.rglob("*") if holds_rows(file)) if path.is_dir() else [path]
            inside = {file.name: file for file in files}
            if len(inside) + len(found) > len(inside.keys() | found.keys()) or len(inside) < len(files):
                raise PreparationError(
                    f"--from {path}: several files have one name: give the folder that holds {', '.join(wanted)}"
                )
        found |= inside
    return found


def check_sums(files: dict[str, Path], expected: dict[str, str], *, console: Console) -> dict[str, str]:
    """SHA-256 of each file. Raises `PreparationError` if one differs from the table."""
    found = {}
    for name, path in files.items():
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
        found[name] = digest.hexdigest()
        wanted = next((value for known, value in expected.items() if known == name or Path(known).name == name), None)
        if wanted is not None and wanted != found[name]:
            raise PreparationError(f"{path}: its SHA-256 is {found[name]}, expected {wanted}: download the file again")
        console.print(f"  {name}: SHA-256 {found[name][:16]}… {'as expected' if wanted else '(the table has none)'}")
    return found


def prepare(name: str, entry: dict[str, Any], out: Path, *, given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Writes NAME.jsonl and NAME.manifest.json into `out`; returns the manifest. `given` are the options of the command line.

    Raises `PreparationError` or `SchemaError`.
    """
    paths, source = list[Path](given.given), source_of(entry)
    console.print(f"[bold]{name}[/bold] from {', '.join(map(str, paths)) or source}")
    if entry.get("revision") == NOT_PINNED and not paths:
        console.print(f"  revision {NOT_PINNED} is not pinned: later downloads may give other rows", style="yellow")
    if "made_from" in entry:
        if paths:
            raise PreparationError(f"{name} is made from {source}: prepare these with --from, then {name} without")
        files, revision = {path.name: path for path in sources_of(name, entry, out).values()}, "as prepared"
    elif paths:
        whole = {path.name: path for path in paths if path.is_file()}  # folders of tasks have no checksum
        files, revision = whole if "tasks" in entry else local(paths, entry.get("files", [])), "local files"
    else:
        files, revision = fetch(name, entry, out)
    sums = check_sums(files, entry.get("sha256", {}), console=console)
    manifest: dict[str, Any] = {
        "name": name,
        "method": entry["method"],
        "role": entry["role"],
        "source": source,
        "revision": revision,
        "pinned": entry.get("revision", NOT_PINNED) != NOT_PINNED and not paths,
        **({"license": entry["license"]} if "license" in entry else {}),
        "files": sums,
    }
    if "tasks" in entry:
        options = {"repositories": given.repositories, "is_verified": not given.unverified, "console": console}
        manifest |= prepare_tasks(name, entry, out, paths=paths or [*files.values()], table=read_table(), **options)
    else:
        manifest |= _prepare_rows(name, entry, out, files=files, console=console)
    manifest["sha256"] = hashlib.sha256((out / f"{name}.jsonl").read_bytes()).hexdigest()
    write_text(out / f"{name}.manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    return manifest


def _prepare_rows(name: str, entry: dict[str, Any], out: Path, *, files: dict[str, Path], console: Console) -> dict[str, Any]:
    rows = made(name, entry, out) if "made_from" in entry else converted(files.values(), entry)
    without = {key for other in entry.get("without", []) for key in _keys_of(other, out, needed_by=name)}
    cleaned = clean(track(rows, description="  rows", console=console), recipe_of(entry), without=without)
    if not cleaned.rows:
        raise PreparationError(f"{name}: no row is left of {cleaned.num_read}")
    write_lines(out / f"{name}.jsonl", cleaned.rows)
    manifest = {
        "num_read": cleaned.num_read,
        "num_left_out": cleaned.num_left_out,
        "num_duplicates": cleaned.num_duplicates,
        "num_conflicts": cleaned.num_conflicts,
        "num_rows": len(cleaned.rows),
        "overlap": overlaps(name, entry, cleaned, out),
    }
    _report(manifest, console)
    if cleaned.num_read != entry.get("num_published", cleaned.num_read):
        console.print(f"  {entry['num_published']:,} rows were published, {cleaned.num_read:,} were read", style="yellow")
    return manifest


def overlaps(name: str, entry: dict[str, Any], cleaned: Cleaned, out: Path) -> dict[str, dict[str, Any]]:
    """The questions that this set shares with each prepared set of the other role, by the set's name; a corpus has none."""
    table, found = read_table(), {}
    other_role = {"train": "evaluation", "evaluation": "train"}.get(entry["role"])
    own = [_key(row, entry) for row in cleaned.rows]
    for other, about in table.items():
        path = out / f"{other}.jsonl"
        if other != name and about["role"] == other_role and "tasks" not in about and path.exists():
            found[other] = asdict(overlap(own, [_key(row, about) for row in read_lines(path)]))
    return found


def _keys_of(name: str, out: Path, *, needed_by: str) -> list[str]:
    """The questions of a prepared set. Raises `PreparationError` if it is not prepared yet."""
    path, entry = out / f"{name}.jsonl", read_table()[name]
    if not path.exists():
        raise PreparationError(f"{needed_by} leaves out the questions of {name}, which is not in {out}: prepare {name} first")
    return [_key(row, entry) for row in read_lines(path)]


def _key(row: dict[str, Any], entry: dict[str, Any]) -> str:
    name = entry.get("rename", {}).get(entry["question"], entry["question"])
    return question_key(row, name, entry.get("instruction", []))


def _report(manifest: dict[str, Any], console: Console) -> None:
    console.print(
        f"  {manifest['num_rows']:,} rows of {manifest['num_read']:,}: {manifest['num_duplicates']:,} duplicates removed "
        f"({manifest['num_conflicts']:,} with another answer), {manifest['num_left_out']:,} left out"
    )
    for other, shared in manifest["overlap"].items():
        number = shared["num_same"] + shared["num_similar"]
        style = "yellow" if number else None
        kinds = f"{shared['num_same']} the same, {shared['num_similar']} with 13 words in a row"
        console.print(f"  shared with {other}: {number} ({kinds})", style=style)


def main(arguments: list[str] | None = None, console: Console | None = None) -> None:
    """Prepares the data sets of the command line."""
    settle()
    table = read_table()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets to prepare, see --list")
    parser.add_argument("--list", action="store_true", help="list all data sets")
    local = "local files or folders of one data set, instead of a download"
    parser.add_argument("--from", dest="given", nargs="+", type=Path, default=[], metavar="PATH", help=local)
    clones = "folder with clones of the repositories that rows of SWE-bench and its like name"
    parser.add_argument("--repositories", type=Path, metavar="FOLDER", help=clones)
    parser.add_argument("--unverified", action="store_true", help="keep coding tasks without trying them")
    parser.add_argument("--out", type=Path, default=Path("data"))
    given = parser.parse_args(arguments)
    console = console or Console(highlight=False, soft_wrap=True)
    unknown = [name for name in given.names if name not in table]
    if unknown or not (given.list or given.names) or (given.given and len(given.names) != 1):
        what = f"there is no data set {', '.join(unknown)}" if unknown else "give one NAME with --from, or names, or --list"
        parser.error(f"{what}; there are: {', '.join(table)}")
    if given.list:
        for name, entry in table.items():
            revision = f"@{entry['revision'][:12]}" if "repository" in entry else ""
            console.print(f"{name:24}{entry['method']:15}{entry['role']:12}{source_of(entry)}{revision}")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        for name in given.names:
            prepare(name, table[name], given.out, given=given, console=console)
    except (PreparationError, SchemaError, OSError, urllib.error.URLError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
