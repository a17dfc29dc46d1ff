"""Runs recipes of tinker-cookbook, unmodified, against the training service, and writes what they measured.

    python tools/tinker_recipes.py --client ENVIRONMENT/bin/python [--recipes math_rl sl_loop …] --output results/tinker

ENVIRONMENT is a virtual environment with tinker and tinker-cookbook; where not all that the latter asks for can be had:

    pip install tinker aiohttp blobfile chz datasets math-verify pillow pylatexenc sympy termcolor textarena tiktoken torch
    pip install --no-deps tinker-cookbook tml-renderers

The service has a tiny model (`tinker_arithmetic.py`), which is made first, in outputs/tinker. Each recipe is started by
`clients/cookbook.py`, which gives it the tokenizer and rows of this folder in place of the hub's. Writes PATH.md and the figure
PATH.svg; a recipe that came to its end is not run again.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench_rows import ROOT, Result, circumstances
from client_environments import installed_version
from svg_chart import standalone_chart
from tinker_versions import served

from tools import tinker_arithmetic
from vime.report.charts import Series
from vime.surroundings import settle
from vime.tiny import tiny_model

FOLDER = Path("outputs/tinker")
NAME = "Qwen/Qwen3-4B-Instruct-2507"
"""The name by which recipes ask for the model: their library knows that its chat format is the one of our tiny models."""
TAUGHT = {
    "sums": [
        "trainer.num_steps=2000",
        "trainer.lr=2e-3",
        "trainer.min_lr=1e-4",
        "trainer.lr_schedule=cosine",
        "trainer.warmup_steps=50",
    ],
    "habits": ["trainer.num_steps=60", "trainer.lr=2e-4"],
}
"""The supervised runs that make the model, one after the other."""
TAUGHT_MODEL = FOLDER / "habits" / "model"
"""The folder of the weights that the last of them writes."""
ALL_TAUGHT = [
    "model=tiny",
    "algorithm=sft",
    "trainer.adam_beta2=0.98",
    "trainer.weight_decay=0",
    "trainer.sft_tokens_per_step=6000",
]
NUM_ROWS = 512
PACKAGES = ("tinker", "tinker-cookbook", "tml-renderers")
"""Packages of the client whose versions the page shows."""
LOSSES = "losses.json"
MINUTES = 40
"""Time limit of a recipe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A recipe with its words and the metrics of its file that are shown."""

    module: str
    """Below `tinker_cookbook.recipes`."""
    words: str
    metrics: tuple[str, ...]
    num_runs: int = 1


RECIPES = {
    "math_rl": Recipe(
        module="math_rl.train",
        words="env=arithmetic loss_fn=importance_sampling group_size=16 groups_per_batch=32 learning_rate=5e-4 max_steps=50 "
        "eval_every=0 save_every=50",
        metrics=("env/all/correct", "optim/kl_sample_train_v1"),
        num_runs=2,
    ),
    "sl_loop": Recipe(module="sl_loop", words="batch_size=32 learning_rate=1e-3 max_length=256", metrics=("train_mean_nll",)),
    "rl_loop": Recipe(
        module="rl_loop",
        words="batch_size=16 group_size=8 learning_rate=1e-3 loss_fn=importance_sampling max_tokens=16 max_steps=10",
        metrics=("reward/total",),
    ),
    "guess_number": Recipe(
        module="multiplayer_rl.guess_number.train",
        words="renderer_name=qwen3_instruct batch_size=4 group_size=4 learning_rate=1e-3 max_tokens=8 eval_every=0 max_steps=10",
        metrics=("env/all/reward/total", "optim/kl_sample_train_v1"),
    ),
    "dpo": Recipe(
        module="preference.dpo.train",
        words="batch_size=32 learning_rate=3e-4 dataset=hhh",
        metrics=("dpo_loss", "accuracy"),
    ),
    "on_policy_distillation": Recipe(
        module="distillation.on_policy_distillation",
        words="teacher_model=NAME teacher_checkpoint=TEACHER dataset=deepmath lora_rank=32 group_size=8 groups_per_batch=16 "
        "learning_rate=1e-3 max_tokens=8 eval_every=0 max_steps=20",
        metrics=("teacher_kl", "optim/kl_sample_train_v1"),
    ),
    "rl_numerics_check": Recipe(
        module="rl_numerics_check.train",
        words="loss_fn=importance_sampling group_size=8 groups_per_batch=4 learning_rate=1e-3 max_tokens=64 "
        "max_trajectory_tokens=3000 task.num_pages_min=2 task.num_pages_max=3 task.page_chars=300 max_steps=5",
        metrics=("optim/kl_sample_train_v1", "optim/kl_sample_train_v2"),
    ),
}
"""NAME stands for the model's name, TEACHER for the sampler that the first run of math_rl left."""
CURVE = "math_rl"
"""The recipe whose curve is drawn."""


def main() -> int:
    """Runs the recipes one after another; returns 1 if one of them fails."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--client", type=Path, required=True, help="interpreter of the environment with tinker-cookbook")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), help="by default all")
    parser.add_argument("--port", type=int, default=8932, help="port of the service (default %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="page and figure are written to OUTPUT.md and OUTPUT.svg")
    options = parser.parse_args()
    page = Result(title="Recipes of tinker-cookbook on the training service")
    write_model()
    write_rows(random.Random(0))
    failed = 0
    words = [
        "model=tiny",
        f"model.checkpoint={TAUGHT_MODEL}",
        f"output_dir={FOLDER / 'service'}",
        f"service.model_names=[{NAME}]",
        "service.max_models=64",  # sessions of clients that have gone end two minutes later
    ]
    with served(words, options.port, FOLDER / "service.log") as url:
        for name in options.recipes:
            for run in range(RECIPES[name].num_runs):
                failed += 0 if (run_folder(name, run) / "seconds").exists() else run_recipe(name, run, options.client, url)
                write_page(options.output, page, options.client)
        if not (FOLDER / LOSSES).exists():
            failed += compare_losses(options.client, url)
        write_page(options.output, page, options.client)
    return 1 if failed else 0


def write_model() -> None:
    """Makes the tiny model, unless it is there."""
    if not (FOLDER / "start").exists():
        tiny_model.write_checkpoint(FOLDER / "start", tinker_arithmetic.build_tokenizer())
    for name in TAUGHT:
        if not (FOLDER / name / "model").exists():
            subprocess.run([sys.executable, *teaching(name)[1:]], check=True, cwd=ROOT)


def teaching(name: str) -> list[str]:
    """The command of a supervised run."""
    before = FOLDER / "start" if name == "sums" else FOLDER / "sums" / "model"
    own = [f"data.demonstrations=tools.tinker_arithmetic.{name}", f"model.checkpoint={before}", f"output_dir={FOLDER / name}"]
    return ["python", "-m", "vime.run", *ALL_TAUGHT, *own, *TAUGHT[name]]


def write_rows(rng: random.Random) -> None:
    """Writes rows in the formats of the recipes' data sets: sums, and the texts of this project's own pages."""
    numbers = [(rng.randint(0, 100), rng.randint(0, 100)) for _ in range(NUM_ROWS)]
    questions = [f"What is {first} + {second}?" for first, second in numbers]
    sums = [str(first + second) for first, second in numbers]
    spoken = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in zip(questions, sums)]
    judged = [
        {"chosen": f"\n\nHuman: {q}\n\nAssistant: {a}", "rejected": f"\n\nHuman: {q}\n\nAssistant: {first}"}
        for q, a, (first, second) in zip(questions, sums, numbers)
        if second
    ]
    pages = [line for path in sorted(ROOT.glob("vime/**/README.md")) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = {
        "HuggingFaceH4/no_robots": [{"messages": messages} for messages in spoken],
        "openai/gsm8k": [{"question": q, "answer": f"#### {a}"} for q, a in zip(questions, sums)],
        "Anthropic/hh-rlhf": judged,
        "zwhe99/DeepMath-103K": [{"question": q} for q in questions],
        "Salesforce/wikitext": [{"text": line} for line in pages],
    }
    for name, each in rows.items():
        for split in ("train", "test"):
            path = FOLDER / "recipes" / name / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in each), encoding="utf-8")
    tinker_arithmetic.build_tokenizer().save_pretrained(FOLDER / "recipes" / "tokenizer")


def run_folder(name: str, run: int) -> Path:
    """The folder of one run of a recipe."""
    return FOLDER / "runs" / f"{name}_{run}"


def words_of(name: str) -> list[str]:
    """The words of a recipe, with the names filled in."""
    words = [f"model_name={NAME}", *RECIPES[name].words.replace("=NAME", f"={NAME}").split()]
    if "TEACHER" in RECIPES[name].words:
        lines = (run_folder("math_rl", 0) / "checkpoints.jsonl").read_text().splitlines()
        path = next(entry["sampler_path"] for line in reversed(lines) if "sampler_path" in (entry := json.loads(line)))
        words = [word.replace("TEACHER", path) for word in words]
    return words


def run_recipe(name: str, run: int, client: Path, url: str) -> int:
    """Runs a recipe from its beginning to its end; returns 1 if it fails."""
    folder = run_folder(name, run)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that failed, about which the recipe would ask
    folder.parent.mkdir(parents=True, exist_ok=True)
    start = [str(ROOT / "tools" / "clients" / "cookbook.py"), NAME, str(FOLDER / "recipes")]
    words = [str(client), *start, f"tinker_cookbook.recipes.{RECIPES[name].module}", *words_of(name), f"log_path={folder}"]
    before = time.monotonic()
    with folder.with_suffix(".log").open("w") as log:
        ended = subprocess.run(words, env=variables(url), stdout=log, stderr=log, timeout=60 * MINUTES, check=False)
    if ended.returncode:
        sys.stderr.write(f"{name} failed: {folder.with_suffix('.log')}\n")
        return 1
    (folder / "seconds").write_text(str(round(time.monotonic() - before)))
    (folder / "command").write_text(shlex.join(["python", "tools/clients/cookbook.py", *words[2:-1]]))
    return 0


def compare_losses(client: Path, url: str) -> int:
    """Puts losses, gradients and AdamW beside PyTorch's, through the SDK; returns 1 if that fails."""
    words = [str(client), str(ROOT / "tools" / "clients" / "tinker_losses.py"), NAME, str(FOLDER / "service")]
    ended = subprocess.run(words, env=variables(url), stdout=subprocess.PIPE, timeout=60 * MINUTES, check=False)
    if ended.returncode == 0:
        (FOLDER / LOSSES).write_bytes(ended.stdout)
    return 1 if ended.returncode else 0


def variables(url: str) -> dict[str, str]:
    """The environment of a client."""
    return os.environ | {"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-recipes", "HF_HUB_OFFLINE": "1"}


def curve(name: str, run: int, metric: str) -> list[float]:
    """The values of a metric of one run, in the order of its steps."""
    lines = (run_folder(name, run) / "metrics.jsonl").read_text().splitlines()
    return [entry[metric] for line in lines if metric in (entry := json.loads(line))]


def write_page(output: Path, page: Result, client: Path) -> None:
    """Writes the table of all runs that came to their ends, and the figure."""
    rows, series = [], []
    for name, recipe in RECIPES.items():
        for run in range(recipe.num_runs):
            if not (run_folder(name, run) / "seconds").exists():
                continue
            seconds = int((run_folder(name, run) / "seconds").read_text())
            for metric in recipe.metrics:
                values = curve(name, run, metric)
                ends = f"{_short(values[0])} | {_short(values[-1])} | {_short(max(values, key=abs))}"
                rows.append(f"| {name} | {run} | `{metric}` | {ends} | {len(values)} | {seconds} |")
            if name == CURVE:
                values = curve(name, run, recipe.metrics[0])
                series.append(Series(label=f"run {run}", x=[float(step) for step in range(len(values))], y=values))
    commands = [_command(name) for name in RECIPES if (run_folder(name, 0) / "command").exists()]
    versions = ", ".join(f"{package} {installed_version(client, package)}" for package in PACKAGES)
    facts = "\n".join(f"- {line}" for line in [*circumstances(page), versions])
    made = [f"python -m tools.tinker_arithmetic {FOLDER / 'start'}", *(shlex.join(teaching(name)) for name in TAUGHT)]
    text = [
        f"# {page.title}\n\n{facts}\n",
        "The recipes' files are as they were installed; `tools/clients/cookbook.py` gives them a tokenizer and rows in place",
        "of the hub's. The model of the service is a tiny one that has learned to add, and then, from demonstrations with two",
        "sums in five, to repeat the answer of the example in its prompt. Seconds are those of the whole process.\n",
        "| recipe | run | metric | first | last | largest | steps | seconds |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
        *rows,
        f"\n![{CURVE}]({output.name}.svg)\n\n## Commands\n",
        "    " + "\n    ".join([*made, *commands]),
    ]
    if (FOLDER / LOSSES).exists():
        found = json.loads((FOLDER / LOSSES).read_text())
        text += ["\n## Losses, gradients and AdamW beside PyTorch", "Largest differences (`tools/clients/tinker_losses.py`).\n"]
        text += ["| | of what | difference |", "|---|---|--:|"]
        text += [f"| {name} | {what} | {value:.1e} |" for name, each in found.items() for what, value in each.items()]
    output.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    if series:
        chart = standalone_chart(f"{CURVE}: right answers", series, x_label="step", y_label="share")
        output.with_suffix(".svg").write_text(chart, encoding="utf-8")


def _command(name: str) -> str:
    return (run_folder(name, 0) / "command").read_text().replace(str(ROOT) + "/", "")


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 0.001 or not value else f"{value:.1e}"


if __name__ == "__main__":
    sys.exit(main())
