"""The results page: every published number with its source, ours only if complete, and rows that were not run say so."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from make_tables import RESULTS, main
from pooled_logs import figure_of, read_logs
from svg_chart import standalone_chart

from vime.config import DataConfig, DatasetConfig, EvaluationConfig, RunConfig
from vime.evaluation.protocol import begin, load_prompts, protocol_of
from vime.files.provenance import plain
from vime.report.charts import Series
from vime.report.results_page import read_published

METHODS = sorted(path.stem for path in (RESULTS / "papers").glob("*.yaml"))


def make_run(folder: Path, *, name: str, method: str = "memagent", datasets: tuple[str, ...], model: str = "tiny") -> Path:
    rows = folder.parent / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"q{i}", "answer": "a"}) + "\n" for i in range(4)))
    sets = [DatasetConfig(name=dataset, path=str(rows)) for dataset in datasets]
    config = RunConfig(name=name, data=DataConfig(evaluation=sets), evaluation=EvaluationConfig(num_runs=2))
    config.method.name, config.model.name, config.evaluation.rows = method, model, ["scaffold", "trained"]
    begin(folder / "evaluation", protocol_of(config, load_prompts(config)))
    (folder / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    (folder / "overrides.yaml").write_text(yaml.safe_dump([f"+experiment={name}", "output_dir=/somewhere"]))
    (folder / "commit.txt").write_text("0123456789abcdef\n")
    (folder / "machine.json").write_text(
        json.dumps({"num_usable_cores": 2, "processor": "Some CPU", "memory_gib": 24, "gpus": []})
    )
    metrics = [{"step": step, "time": 0, "reward/mean": step / 40} for step in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    for dataset in datasets:
        for row, scores in (("scaffold", [[0, 0, 0, 1], [0, 0, 0, 0]]), ("trained", [[1, 1, 1, 1], [1, 1, 1, 0]])):
            for run, strict in enumerate(scores):
                items = [
                    {"index": i, "item": f"x{i}", "strict": s, "lenient": 1.0, "failed": s == 0, "temperature": 1.0}
                    for i, s in enumerate(strict)
                ]
                path = folder / "evaluation" / f"{dataset}-{row}-t1-run{run}.jsonl"
                path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return folder


def built(method: str, out: Path, *runs: Path) -> tuple[str, dict[str, Any]]:
    main([method, *map(str, runs), "--out", str(out)])
    return (out / f"{method}.md").read_text(), json.loads((out / f"{method}.json").read_text())


@pytest.mark.parametrize("method", METHODS)
def test_without_runs_every_row_of_ours_says_not_run_and_how_to(method: str, tmp_path: Path):
    text, page = built(method, tmp_path)
    planned = [row for table in page["tables"] for row in table["ours"]]
    assert planned and all(row["state"] == "not run" for row in planned)
    assert all(f"not run: `{row['command']}`" in text for row in planned)
    assert all(row["source"] for table in page["tables"] for row in table["published"])


def test_the_methods_have_their_papers_and_the_best_of_many_is_called_so():
    assert METHODS == ["agentflow", "coding", "memagent", "multi_agent", "retool", "search_r1", "toolorchestra"]
    tables = {method: read_published(RESULTS / "papers" / f"{method}.yaml")["tables"] for method in METHODS}
    memagent = {row["name"]: row["values"] for row in tables["memagent"][0]["published"]}
    assert memagent["RL-MemAgent-7B (v1)"][:2] == [82.03, 79.69] and memagent["Qwen2.5-7B"][7] == 1.56
    assert memagent["slime-agentic 7B, checkpoint 299: best of 5 runs, as published"][0] == 78.12
    assert memagent["slime-agentic 7B, checkpoint 299: average of 5 runs"][0] == 75.3
    flow = {row["name"]: row["values"] for row in tables["agentflow"][0]["published"]}
    assert flow["+Flow-GRPO"] == [69.6, 77.2, 57.0, 25.3, 57.3, 33.1]
    coding = {row["name"].partition(",")[0]: row["values"] for row in tables["coding"][0]["published"]}
    assert coding["SkyRL-Agent-8B-v0"] == [3.6, 9.4]
    search = {row["name"]: row["values"] for row in tables["search_r1"][0]["published"]}
    assert search["Search-R1, GRPO, Qwen2.5-7B-Instruct"] == [42.9, 62.3, 42.7, 38.6, 34.6, 16.2, 40.0]
    orchestra = {row["name"]: row["values"] for row in tables["toolorchestra"][0]["published"]}
    assert orchestra["all tools, Orchestrator-8B"] == [37.1, 76.3, 80.2, 9.2, 8.2]


def test_our_runs_stand_beside_the_paper_and_at_their_scale(tmp_path: Path):
    large = make_run(tmp_path / "large", name="memagent_paper_7b", datasets=("ruler_hqa_7k", "ruler_hqa_14k"), model="qwen2.5-7b")
    tiny = make_run(tmp_path / "tiny", name="memagent_paper_tiny", datasets=("docs_20", "docs_40"))
    text, page = built("memagent", tmp_path / "out", large, tiny)
    ours = {row["name"]: row for row in page["tables"][0]["ours"]}
    trained = ours["Qwen2.5-7B-Instruct, trained with the paper's estimator"]
    assert trained["values"][0]["mean"] == 100.0 and trained["values"][2] is None, "the paper's score is the lenient one"
    assert ours["Qwen2.5-7B-Instruct, single turn"]["state"] == "not run", "a row that the run did not measure"
    (small,) = page["small"]
    assert [row["name"] for row in small["rows"]] == ["untrained scaffold", "trained scaffold"]
    assert small["rows"][0]["strict"][0] == {"mean": 12.5, "sd": pytest.approx(17.6777), "num_runs": 2, "num_items": 4}
    assert small["rows"][0]["num_failed"] == 14 and small["rows"][1]["num_failed"] == 2
    assert "| trained scaffold | 87.5 ± 17.7 (100.0) | 87.5 ± 17.7 (100.0) | 2 |" in text
    assert page["runs"][1]["command"] == "python -m vime.run +experiment=memagent_paper_tiny"
    assert page["runs"][1]["commit"] == "0123456789ab" and "2 cores of Some CPU" in text
    assert page["curves"][1]["points"][0] == [1, 0.025] and page["curves"][1]["points"][-1] == [40, 1.0]


def test_an_incomplete_run_and_another_method_s_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path / "run", name="memagent_paper_tiny", datasets=("docs_20",))
    path = run / "evaluation" / "docs_20-trained-t1-run1.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(SystemExit):
        built("memagent", tmp_path / "out", run)
    assert "docs_20, trained, run 1 is incomplete: 3 of 4 items, without 3" in capsys.readouterr().err
    other = make_run(tmp_path / "other", name="agentflow_tiny", method="agentflow", datasets=("docs_20",))
    with pytest.raises(SystemExit):
        built("memagent", tmp_path / "out", other)
    assert "agentflow_tiny: not of memagent" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_rehearsal_enters_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path / "run", name="memagent_paper_tiny", datasets=("docs_20",))
    file = run / "config.yaml"
    file.write_text(file.read_text() + "\nrehearse: true\n")
    with pytest.raises(SystemExit):
        built("memagent", tmp_path / "out", run)
    assert "a rehearsal of a random model" in capsys.readouterr().err and not (tmp_path / "out").exists()


def with_metadata(run: Path) -> None:
    """Puts what an orchestrator did into the items: the trained one solves for less."""
    for path in (run / "evaluation").glob("*.jsonl"):
        dollars = 1e-5 if "trained" in path.stem else 4e-5
        call = {"tool": "answer", "alias": "junior", "end": "answered", "dollars": dollars, "input_tokens": 9, "output_tokens": 1}
        metadata = {"ending": "answered", "dollars": dollars, "seconds": 1.0, "turns": 1, "invalid_calls": 0, "domain": "sum"}
        metadata |= {"tool_calls": {"answer": 1}, "expert_calls": [call]}
        items = [json.loads(line) for line in path.read_text().splitlines()]
        items = [{**item, "metrics": {}, "samples": [{"metadata": metadata}]} for item in items]
        path.write_text("".join(json.dumps(item) + "\n" for item in items))


def test_what_a_method_logs_stands_in_a_table_of_all_data_sets_with_a_figure_beside_it(tmp_path: Path):
    run = make_run(tmp_path / "tiny", name="toolorchestra_tiny", method="toolorchestra", datasets=("sums", "facts"))
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["method"]["eval_log"] = "agentic.toolorchestra.eval_log.eval_log"
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    with_metadata(run)
    text, page = built("toolorchestra", tmp_path / "out", run)
    (logs,) = page["logs"]
    rows = {row["name"]: dict(zip(logs["columns"], row["values"])) for row in logs["rows"]}
    assert rows["untrained scaffold, all"]["solved, %"] == 12.5 and rows["trained scaffold, all"]["solved, %"] == 87.5
    assert rows["untrained scaffold, all"]["dollars per solved item"] == pytest.approx(4e-5 * 8)
    assert rows["trained scaffold, facts"]["dollars per solved item"] == pytest.approx(1e-5 * 8 / 7)
    assert rows["trained scaffold, sums"]["calls of junior"] == 1.0 and rows["trained scaffold, sums"]["searches"] is None
    drawn = (tmp_path / "out" / logs["file"]).read_text()
    assert drawn.startswith("<svg xmlns=") and ">trained scaffold<" in drawn and ">solved at this cost or less<" in drawn
    assert f"![cost and accuracy]({logs['file']})" in text
    about = {"title": "cost", "x_label": "dollars", "figure": "cost_accuracy", "metrics": {}, "each": "trained"}
    each = read_logs(run, about)
    assert each is not None
    assert list(each["figure"]) == ["untrained scaffold, facts", "trained scaffold, sums", "trained scaffold, facts"]
    assert [solved["series"]["solved at this cost or less"][-1] for solved in each["figure"].values()] == [1 / 8, 7 / 8, 7 / 8]
    assert figure_of(each, about).count('class="line"') == 3


def test_a_figure_over_long_inputs_has_a_logarithmic_axis():
    def marks(*x: float) -> list[str]:
        drawn = standalone_chart("t", [Series(label="a", x=list(x), y=[0.0] * len(x))], x_label="chunks")
        return re.findall(r'class="tick mid"[^>]*>([\d.]+)<', drawn)

    assert marks(1, 10, 54) == ["1", "2", "5", "10", "20", "50"] and marks(1, 5, 10) == ["2", "4", "6", "8", "10"]
