"""The first hour on a GPU machine, with stand-ins for steps and nvidia-smi; and the existing steps, by their plans."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import gpu_cards
from first_hour_steps import FOLDER, PYTHON, RUN, STEPS, Part

from vime.cluster import accelerators
from vime.preflight.compose import compose_run
from vime.preflight.validation import find_problems

ROOT = Path(__file__).parents[2]
H100 = "NVIDIA H100 80GB HBM3, 81559 MiB, 580.82.07"
STAND_INS = """
def step(name, script, *, needs=(), cards=1, minutes=1, shows=r"\\S", rehearsal=("echo fine",)):
    def part(text):
        return Part(title=name.upper(), command=("sh", "-c", text), minutes=minutes, shows=shows)
    parts = tuple(part(text) for text in rehearsal)
    return Step(name=name, real=part(script), needs=needs, cards=cards, rehearsal=parts, left_to_a_card=f"the card of {name}")

STEPS = (
"""


def hour(folder: Path, steps: str, *words: str, num_cards: int = 1) -> subprocess.Popen[str]:
    """The program in a folder of its own, with these steps and a machine with `num_cards` cards."""
    (folder / "tools").mkdir()
    (folder / "bin").mkdir()
    shutil.copy(ROOT / "tools" / "first_hour.py", folder / "tools")
    table = (ROOT / "tools" / "first_hour_steps.py").read_text() + STAND_INS + steps + "\n)\n"
    (folder / "tools" / "first_hour_steps.py").write_text(table)
    program = folder / "bin" / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + (f"echo '{H100}'\n" * num_cards or "exit 9\n"))
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "FOLDER": str(folder)}
    command = [sys.executable, "tools/first_hour.py", *words]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and output."""
    output, _ = process.communicate(timeout=100)
    return process.returncode, output


def row(page: str, step: str) -> str:
    """The line of a step in the table."""
    return next(line for line in page.splitlines() if line.startswith(f"| {step} |"))


def is_alive(pid: int) -> bool:
    """False for a process that has ended, even if its status has not been collected."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_step_that_fails_ends_those_that_need_it_and_no_others(tmp_path: Path) -> None:
    steps = """
    step("good", "echo one; echo 42 of 42; echo end", shows="of"),
    step("bad", "echo setting out; echo CUDA error: no kernel image >&2; exit 3"),
    step("after", "echo never > $FOLDER/ran", needs=("bad",)),
    step("later", "echo never > $FOLDER/ran", needs=("after", "good")),
    step("other", "echo still here", needs=("good",)),
    """
    code, output = ended(hour(tmp_path, steps))
    page = (tmp_path / "results" / "gpu.md").read_text()
    assert code == 1 and "2 passed, 1 failed, 2 skipped" in output and "2 passed, 1 failed, 2 skipped" in page
    assert "| passed |" in row(page, "good") and "42 of 42" in row(page, "good") and "still here" in row(page, "other")
    assert "**failed**: ended with 3" in row(page, "bad")
    assert "skipped: needs bad" in row(page, "after") and "skipped: needs after" in row(page, "later")
    assert not (tmp_path / "ran").exists() and f"1 × {H100}" in page
    log = next(tmp_path.glob("outputs/first_hour/*/bad.log"))
    assert f"`{log.relative_to(tmp_path)}`:\n\n    setting out\n    CUDA error: no kernel image\n" in page


def test_steps_that_want_more_cards_are_skipped_by_name(tmp_path: Path) -> None:
    steps = (
        'step("fetch", "echo x", cards=8), step("big", "echo x", needs=("fetch",), cards=8), step("small", "echo x", cards=2),'
    )
    code, _ = ended(hour(tmp_path, steps, num_cards=2))
    page = (tmp_path / "results" / "gpu.md").read_text()
    assert code == 0 and "needs 8 cards, and there are 2" in row(page, "fetch") and "| passed |" in row(page, "small")
    assert "needs fetch" in row(page, "big") and f"2 × {H100}" in page


def test_a_step_over_its_limit_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    steps = """
    step("slow", "setsid sleep 1000 & echo $! > $FOLDER/pid; echo $$ >> $FOLDER/pid; exec sleep 1000", minutes=0.02),
    step("daemon", "(setsid sleep 1000 & echo $! > $FOLDER/daemon); echo done"),
    step("other", "echo x"),
    """
    code, _ = ended(hour(tmp_path, steps))
    page = (tmp_path / "results" / "gpu.md").read_text()
    assert code == 1 and "took more than 0.02 min" in row(page, "slow") and "| passed |" in row(page, "other")
    pids = [int(word) for name in ("pid", "daemon") for word in (tmp_path / name).read_text().split()]
    assert len(pids) == 3 and not any(map(is_alive, pids))


def test_a_step_that_says_nothing_of_what_it_should_show_has_failed(tmp_path: Path) -> None:
    code, _ = ended(hour(tmp_path, 'step("mute", "echo nothing was run", shows="passed"),'))
    assert code == 1 and "no line like passed" in row((tmp_path / "results" / "gpu.md").read_text(), "mute")


def test_weights_of_a_step_are_removed_before_the_next(tmp_path: Path) -> None:
    make = "mkdir -p {folder}/checkpoints {folder}/model; echo kept > {folder}/summary.json; echo done"
    steps = f'step("run", "{make}"), step("next", "ls $FOLDER/outputs/first_hour/*/run"),'
    code, _ = ended(hour(tmp_path, steps))
    assert code == 0 and next(tmp_path.glob("outputs/first_hour/*/next.log")).read_text() == "summary.json\n"


def test_a_machine_without_a_card_is_told_so_and_nothing_is_written(tmp_path: Path) -> None:
    code, output = ended(hour(tmp_path, 'step("any", "echo x"),', num_cards=0))
    assert code == 2 and "finds no GPU" in output and not (tmp_path / "results").exists()


def test_an_interrupted_hour_ends_its_step_and_writes_what_there_is(tmp_path: Path) -> None:
    steps = 'step("first", "echo x"), step("second", "echo $$ > {folder}.pid; exec sleep 1000"), step("third", "echo x"),'
    process = hour(tmp_path, steps)
    while not (found := list(tmp_path.glob("outputs/first_hour/*/second.pid"))) or not found[0].read_text().strip():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, _ = ended(process)
    page = (tmp_path / "results" / "gpu.md").read_text()
    assert code == 130 and "| passed |" in row(page, "first") and "interrupted" in row(page, "second")
    assert "skipped: interrupted" in row(page, "third") and not is_alive(int(found[0].read_text()))


def test_chosen_steps_do_not_wait_for_those_that_nobody_asked_for(tmp_path: Path) -> None:
    steps = 'step("first", "exit 1"), step("second", "echo x", needs=("first",)), step("third", "echo x"),'
    code, _ = ended(hour(tmp_path, steps, "--only", "second", "third", "--skip", "third", "--page", "elsewhere.md"))
    page = (tmp_path / "elsewhere.md").read_text()
    assert code == 0 and "| passed |" in row(page, "second")
    assert "not asked for" in row(page, "first") and "not asked for" in row(page, "third")


@pytest.mark.parametrize(("script", "wanted"), [('echo fine; test -z \\"$CUDA_VISIBLE_DEVICES\\"', 0), ("echo no; exit 1", 1)])
def test_a_rehearsal_goes_through_all_steps_without_a_card_and_leaves_the_measured_page_alone(
    script: str, wanted: int, tmp_path: Path
) -> None:
    steps = f"""
    step("one", "exit 1", cards=8, rehearsal=("{script}", "echo second")),
    step("two", "exit 1", needs=("one",)),
    step("three", "exit 1", rehearsal=()),
    """
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "gpu.md").write_text("measured")
    code, output = ended(hour(tmp_path, steps, "--rehearse", num_cards=0))
    page = (tmp_path / "results" / "gpu_rehearsal.md").read_text()
    assert code == wanted and (tmp_path / "results" / "gpu.md").read_text() == "measured"
    assert f"3 steps: {2 - wanted} passed, {wanted} failed, 1 skipped" in output
    assert page.count("| one |") == 2 and "| passed |" in row(page, "two") and "| the card of two |" in row(page, "two")
    assert "skipped: the card of three" in row(page, "three")


def test_steps_need_earlier_ones_and_every_rehearsal_says_what_it_leaves_open() -> None:
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names) and all(step.left_to_a_card for step in STEPS)
    for number, step in enumerate(STEPS):
        assert set(step.needs) <= set(names[:number])
        assert step.rehearsal or step.name.startswith("fetch_")
    assert {step.cards for step in STEPS} == {0, 1, 8}


def runs() -> list[Part]:
    """All parts that start the program itself."""
    return [part for step in STEPS for part in (step.real, *step.rehearsal) if part.command[: len(RUN)] == RUN]


@pytest.mark.parametrize("part", runs(), ids=lambda part: part.title)
def test_the_run_of_a_step_is_accepted(part: Part) -> None:
    words = [word for word in part.command[len(RUN) - 1 :] if word not in (FOLDER, "mode=plan", "rehearse=true")]
    assert len(runs()) > 8 and [str(problem) for problem in find_problems(compose_run([*words, "mode=plan"]).config)] == []


def test_the_programs_of_the_steps_are_there() -> None:
    words = [word for step in STEPS for part in (step.real, *step.rehearsal) for word in part.command]
    assert all((ROOT / word).is_file() for word in words if word.startswith("tools/"))
    assert (ROOT / PYTHON).exists()


@pytest.mark.slow
def test_two_processes_stand_for_cards() -> None:
    found = subprocess.run([sys.executable, "tools/gpu_cards.py", "--device", "cpu"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0 and "all 2 cards are as they should be" in found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("count", "build", "driver", "said"),
    [
        (0, "cpu", "580.82.07", "CPU build"),
        (0, "gpu", "550.54.15", "driver is 550.54.15"),
        (0, "gpu", None, "no NVIDIA driver"),
        (7, "gpu", "580.82.07", "sees 7 cards, and the machine has 8"),
        (8, "gpu", "580.82.07", None),
    ],
)
def test_cards_that_pytorch_does_not_see_are_explained(
    count: int, build: str, driver: str | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_cards, "num_gpus", lambda: 8)
    monkeypatch.setattr(gpu_cards, "installed_build", lambda: build)
    monkeypatch.setattr(accelerators, "driver_version", lambda: driver)
    found = gpu_cards.absent(count)
    assert (said is None and found == []) or (said is not None and said in found[0] and len(found) == 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"free": 40}, "another program uses it"),
        ({"product": 0.99}, "multiplies wrongly"),
        ({"sum": 2.0}, "the sum over 2"),
    ],
)
def test_what_is_wrong_with_a_card_is_named(changed: dict[str, float], said: str | None) -> None:
    card = {"card": 1, "free": 79, "total": 80, "product": 1.0, "sum": 3.0} | changed
    found = gpu_cards.problems(card, 2)
    assert (said is None and found == []) or (said is not None and said in found[0] and "card 1" in found[0])
