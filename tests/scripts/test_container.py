"""The container file beside what it relies on: a promised interpreter, and one documented command for GPUs."""

import re
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_the_interpreter_of_the_image_has_constraints_for_both_builds() -> None:
    found = re.search(r"(?m)^FROM python:(\d\.\d+)-slim$", (SCRIPTS / "Containerfile").read_text())
    assert found is not None
    assert all((SCRIPTS / "constraints" / f"{build}-{found[1]}.txt").is_file() for build in ("cpu", "gpu"))


def test_the_readme_runs_the_gpu_image_as_the_container_file_says_with_the_models_of_the_host() -> None:
    said = [
        re.search(r"docker run --gpus all.*?\n.*?vime-gpu [^\n]*", text.replace("\n#", "\n"), re.S)
        for text in ((SCRIPTS / name).read_text() for name in ("Containerfile", "README.md"))
    ]
    commands = {" ".join(found[0].split()) for found in said if found is not None}
    assert len(commands) == 1 and None not in said
    (command,) = commands
    assert '-v "$HOME/.cache/huggingface:/root/.cache/huggingface"' in command and "--ipc=host" in command
