"""Converts ToolScale and GeneralThought to training rows, without the tasks of the evaluation sets.

    python -m agentic.toolorchestra.data toolscale.parquet generalthought.parquet --output train.jsonl [--exclude eval.jsonl]

ToolScale (nvidia/ToolScale) has tasks like those of τ²-bench in ten domains. Its table has a column for every argument of every
tool, mostly filled with nulls, which are dropped. GeneralThought-430K-filtered has questions with reference answers.
"""

import argparse
import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentic.toolorchestra.outcome import normalize
from agentic.toolorchestra.rewards import ACCURACY, COST, LATENCY, wrong_weights
from vime.config import DatasetConfig
from vime.data.dataset import load_rows

logger = logging.getLogger(__name__)

Row = dict[str, Any]
FUNC_CALL, QA = "func_call", "qa"
"""Categories of rows: a task with a database, or a question with an answer."""
MAX_ANSWER_CHARACTERS = 400
"""Longest reference answer; a longer one cannot be compared word by word."""
MIN_PASSAGE_CHARACTERS = 100
"""Passages up to this length are left out."""


def from_toolscale(row: Row) -> Row | None:
    """The training row of a ToolScale task, or None if it names no actions to compare with.

    Example of the result: `{"problem": "…", "answer": "", "eid": "bank____17", "category": "func_call", "example": {…}}`.
    """
    example = without_nulls({name: _parsed(value) for name, value in row.items()})
    criteria = example.get("evaluation_criteria") or {}
    instructions = (example.get("user_scenario") or {}).get("instructions") or {}
    if isinstance(instructions, str):
        instructions = {"task_instructions": instructions}
    actions = [action for action in criteria.get("actions") or [] if action.get("name")]
    words = [instructions.get(name) for name in ("reason_for_call", "task_instructions")]
    problem = " ".join(word.strip() for word in words if word and word.strip())
    if not actions or not problem:
        return None
    criteria["actions"] = [{**action, "arguments": action.get("arguments") or {}} for action in actions]
    domain = str(instructions.get("domain") or example.get("domain") or "toolscale")
    return {
        "problem": problem,
        "answer": "",
        "eid": f"{domain}____{example['id']}",
        "category": FUNC_CALL,
        "example": {**example, "evaluation_criteria": criteria},
    }


def from_general_thought(row: Row) -> Row | None:
    """The training row of a GeneralThought question, or None if it has no short reference answer.

    Example of the result: `{"problem": "2+2?", "answer": "4", "eid": "generalthought____81", "category": "qa"}`.
    """
    row = without_nulls(row)
    problem, answer = str(row.get("question") or "").strip(), str(row.get("reference_answer") or "").strip()
    if not problem or not normalize(answer) or len(answer) > MAX_ANSWER_CHARACTERS:
        return None
    number = row.get("question_id") or hashlib.sha256(problem.encode()).hexdigest()[:16]
    return {"problem": problem, "answer": answer, "eid": f"generalthought____{number}", "category": QA}


def from_authors(row: Row) -> Row | None:
    """The training row of a row of the authors' own file (training/data.jsonl), or None for a task of ToolScale's domains.

    Its preference vector is kept if all weights lie from 0 to 1, as in the paper. Example of the result: `{"problem": "2+2?",
    "answer": "4", "eid": "qa____7", "category": "qa", "preference": {"accuracy": 1.0, "cost": 0.2, "tools": {}}}`.
    """
    row = without_nulls(row)
    problem, answer = str(row.get("problem") or "").strip(), str(row.get("answer") or "").strip()
    if row.get("category") != QA or not problem or not normalize(answer):
        return None
    number = row.get("id") or row.get("eid") or hashlib.sha256(problem.encode()).hexdigest()[:16]
    made = {"problem": problem, "answer": answer, "eid": str(number), "category": QA}
    weights = {name: float(weight) for name, weight in (row.get("pref_vec") or {}).items()}
    if not weights or wrong_weights(weights):
        return made
    tools = {name: weight for name, weight in weights.items() if name not in (ACCURACY, COST, LATENCY)}
    return {**made, "preference": {**{name: weights.get(name, 0.0) for name in (ACCURACY, COST, LATENCY)}, "tools": tools}}


def without_nulls(value: Any) -> Any:
    """The value without keys that hold null, at any depth; nulls in lists are kept."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def training_rows(sources: Mapping[str, Path], *, without: Mapping[str, Path], folder: Path, name: str) -> list[Row]:
    """The questions of prepared sets that are in none of the evaluation sets `without`, for tools/datasets.yaml."""
    held = [{"problem": row["question"]} for path in without.values() for row in load_rows(DatasetConfig(path=str(path)))]
    rows, left_out = prepare(
        (row for path in sources.values() for row in load_rows(DatasetConfig(path=str(path)))), evaluation=held
    )
    logger.info("left out: %s", left_out)
    return rows


def passage(row: Row) -> Row | None:
    """A passage of the authors' retrieval corpus, or None if it has at most 100 characters, as in their service."""
    text = str(row.get("contents") or "").strip()
    if len(text) <= MIN_PASSAGE_CHARACTERS:
        return None
    return {"id": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16], "title": "", "text": text}


SOURCES: dict[str, Callable[[Row], Row | None]] = {"toolscale": from_toolscale, "generalthought": from_general_thought}
"""The conversion of a row, by its source."""


def source_of(row: Row) -> str:
    """The source of a row, recognized by its columns. Raises ValueError if it is neither of the two."""
    if "evaluation_criteria" in row:
        return "toolscale"
    if "reference_answer" in row:
        return "generalthought"
    raise ValueError(f"a row with the columns {', '.join(sorted(row))} is from none of {', '.join(SOURCES)}")


def prepare(rows: Iterable[Row], *, evaluation: Iterable[Row] = ()) -> tuple[list[Row], dict[str, int]]:
    """Training rows, each question once, without those in `evaluation`; and the number of rows left out, by reason.

    `rows` are in the format of their source, `evaluation` in that of the result.
    """
    held_ids, held_texts = set(), set()
    for row in evaluation:
        held_ids |= {row["eid"]} if row.get("eid") else set()
        held_texts.add(_key(row))
    found: list[Row] = []
    left_out = {"incomplete": 0, "in_evaluation": 0, "twice": 0}
    seen: set[str] = set()
    for row in rows:
        made = SOURCES[source_of(row)](row)
        if made is None:
            left_out["incomplete"] += 1
        elif made["eid"] in held_ids or _key(made) in held_texts:
            left_out["in_evaluation"] += 1
        elif _key(made) in seen:
            left_out["twice"] += 1
        else:
            seen.add(_key(made))
            found.append(made)
    return found, left_out


def main(words: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(prog="python -m agentic.toolorchestra.data", description=__doc__)
    parser.add_argument("sources", nargs="+", help="files of rows, or Hugging Face ids")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--exclude", nargs="*", default=[], help="files of evaluation rows to leave out, in the format of the output"
    )
    parser.add_argument("--only", choices=[FUNC_CALL, QA], help="keep the rows of one category only")
    arguments = parser.parse_args(words)
    evaluation = [row for path in arguments.exclude for row in load_rows(DatasetConfig(path=path))]
    rows, left_out = prepare(
        (row for path in arguments.sources for row in load_rows(DatasetConfig(path=path))), evaluation=evaluation
    )
    rows = [row for row in rows if arguments.only in (None, row["category"])]
    arguments.output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    logger.info("%d rows in %s; left out: %s", len(rows), arguments.output, left_out)
    return 0


def _key(row: Row) -> str:
    """Identifies a question by its words and, because many users say the same, by the actions of its task."""
    actions = (row.get("example") or {}).get("evaluation_criteria", {}).get("actions", [])
    done = sorted(json.dumps([action["name"], action.get("arguments")], sort_keys=True) for action in actions)
    return json.dumps([normalize(row["problem"]), done])


def _parsed(value: Any) -> Any:
    """The value of a nested column, which may be an object or a JSON text."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


if __name__ == "__main__":
    sys.exit(main())
