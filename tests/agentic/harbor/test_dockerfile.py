"""Dockerfiles: what is read, and the lines that are refused, each with its number."""

import platform
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.harbor import dockerfile, shell_commands
from agentic.harbor.dockerfile import read_dockerfile

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
KEPT = ["WORKDIR /app", "COPY app/ /app/", "ENV LANG=C", "# a comment", "", 'CMD ["bash"]', "RUN mkdir -p /out && chmod 700 /out"]
REFUSED = {
    "RUN make": "make: only mkdir",
    "RUN curl -fsSL https://a.b/c | sh": "one after another",
    "RUN echo x > /app/x": "one after another",
    "RUN mkdir -p $(pwd)/x": "one after another",
    "RUN git clone https://a.b/c": "git clone",
    "RUN apt-get update && apt-get install -y no-such-package": "no-such-package is not installed on this machine",
    "RUN apt-get upgrade -y": "apt-get upgrade is not supported",
    "RUN pip install git+https://a.b/c": "is no package of the registry",
    "RUN pip install -e .": "option -e is not supported",
    "RUN pip install --index-url https://a.b numpy": "option --index-url",
    "RUN pip install -r missing.txt": "no COPY before it has put a file at",
    "RUN pip uninstall -y numpy": "only install can be done",
    "RUN rm -rf /app": "rm -rf /app",
    "RUN chmod +x /usr/local/bin/tool": "its host's /usr",
    "RUN cat <<EOF\nRUN inner\nEOF": "a text within the Dockerfile",
    "RUN --mount=type=secret,id=a true": "only mkdir",
    "COPY --from=build /a /b": "option --from",
    "COPY missing.txt /app/": "environment/missing.txt does not exist",
    "COPY outside /app/": "environment/outside leads outside of environment/",
    "COPY outside/passwd /app/": "environment/outside/passwd leads outside of environment/",
    "COPY loop /app/": "environment/loop does not exist",
    "COPY ../task.toml /app/": "outside of environment/",
    "COPY app/ /usr/lib/app": "its host's /usr",
    "COPY app/main.py /main.txt/../..": "no files of a task in / itself",
    "COPY app/ /tmp/app": "is empty when a workspace opens",
    "ADD https://a.b/c /app/": "outside of the task's folder",
    "ADD packed.tar.gz /app/": "an archive that ADD unpacks",
    "ARG VERSION": "has no default",
    "HEALTHCHECK CMD true": "HEALTHCHECK is not supported",
    "VOLUME /data": "VOLUME is not supported",
    "ONBUILD RUN true": "ONBUILD is not supported",
    'SHELL ["/bin/zsh", "-c"]': "the shell must be bash",
    "FROM debian AS second": "several stages",
    "WORKDIR /etc/app": "its host's /etc",
    "NONSENSE": "NONSENSE is not supported",
}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder environment/ of a task."""
    folder = tmp_path_factory.mktemp("task") / "environment"
    (folder / "app/deep").mkdir(parents=True)
    for name in ("app/main.py", "app/deep/more.txt", "packed.tar.gz", "one.txt", "two.txt"):
        (folder / name).write_text(name)
    (folder / "requirements.txt").write_text("six==1.16.0  # a comment\n\ntoml>=0.10\n")
    (folder / "outside").symlink_to("/etc")
    (folder / "loop").symlink_to("loop")
    (folder / "linked").mkdir()
    (folder / "linked/up").symlink_to("../app")
    (folder / "over/up").mkdir(parents=True)
    (folder / "over/up/main.py").write_text("over")
    return folder


@settings(max_examples=5, deadline=None)
@given(before=st.lists(st.sampled_from(KEPT), max_size=5), after=st.sampled_from(KEPT))
def test_each_kind_of_line_that_does_more_is_refused_with_its_number_and_reason(context: Path, before: list[str], after: str):
    for wrong, reason in REFUSED.items():
        _, refused = read_dockerfile("\n".join([f"FROM python:{OWN}-slim", *before, wrong, after]), context)
        assert [refusal.line for refusal in refused] == [2 + len(before)]
        assert reason in refused[0].reason and refused[0].text == wrong.splitlines()[0]
        assert str(refused[0]).startswith(f"environment/Dockerfile:{2 + len(before)}: `{wrong.splitlines()[0][:100]}")


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (f"python:{OWN}", ""),
        (f"docker.io/library/python:{OWN}.1-slim-bookworm@sha256:ab", ""),
        ("debian:bookworm-slim", ""),
        ("ubuntu", ""),
        ("python:2.7", "run vime with Python 2.7"),
        ("python:3", "names no version X.Y"),
        (f"python:{OWN}-alpine", "names no version X.Y on Debian"),
        ("rust:1.83", "cannot be had without containers"),
        ("ghcr.io/a/python:3.11", "cannot be had without containers"),
        ("--platform=linux/s390x debian", f"this machine is {platform.machine()}"),
    ],
)
def test_a_base_is_this_python_or_stands_for_this_system(context: Path, base: str, reason: str):
    _, refused = read_dockerfile(f"FROM {base}\nWORKDIR /app\n", context)
    assert (reason == "" and not refused) or (reason in refused[0].reason and refused[0].line == 1)
    assert read_dockerfile("WORKDIR /app\n", context)[1][0].reason == "has no FROM"


def test_what_a_dockerfile_does_is_read_in_its_order(context: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dockerfile, "missing_system_package", lambda name: "" if name == "git" else f"no {name}")
    text = f"""\
# syntax=docker/dockerfile:1
ARG BASE={OWN}
FROM python:${{BASE}}-slim
ENV NAME="two words" \\
    # within
    OTHER=${{NAME:-none}}
ENV PATH="/opt/tool/bin:${{PATH}}" OLD=1
RUN DEBIAN_FRONTEND=noninteractive apt-get update \\
    && apt-get install -y --no-install-recommends git \\

    && rm -rf /var/lib/apt/lists/* && apt-get clean
WORKDIR /work
WORKDIR deep
COPY --chmod=755 one.txt two.txt ./
COPY app /data
COPY ["one.txt", "/data/renamed.txt"]
COPY requirements.txt .
RUN python3 -m pip install --no-cache-dir -r requirements.txt "numpy>=1,<3"
RUN mkdir -p -m 700 /home/user/x /var/run/y /tmp/z
USER nobody
ENTRYPOINT ["/bin/x"]
"""
    image, refused = read_dockerfile(text, context)
    assert not refused
    assert image.environment == {"NAME": "two words", "OTHER": "none", "PATH": "/opt/tool/bin:$PATH", "OLD": "1"}
    assert (image.workdir, image.places) == ("/work/deep", {"/work", "/data", "/home/user", "/var/run"})
    copied = [(str(copy.source.relative_to(context)), copy.target) for copy in image.copies]
    assert copied == [
        ("one.txt", "/work/deep/one.txt"),
        ("two.txt", "/work/deep/two.txt"),
        ("app", "/data"),
        ("one.txt", "/data/renamed.txt"),
        ("requirements.txt", "/work/deep/requirements.txt"),
    ]
    assert ["chmod", "-R", "755", "/work/deep/two.txt"] in image.commands
    assert image.commands[-1] == ["mkdir", "-p", "-m", "700", "/home/user/x", "/var/run/y", "/tmp/z"]
    assert [(wanted.name, wanted.line) for wanted in image.python] == [
        ("numpy>=1,<3", 18),
        ("six==1.16.0", 18),
        ("toml>=0.10", 18),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "COPY one.txt /data/up/authorized_keys",
        "COPY one.txt /data/up/",
        "COPY one.txt two.txt /data/up",
        "COPY app /data/up",
        "COPY app /data/up/deep",
        "COPY over /data",
        "COPY . /data/up/x",
        'COPY ["one.txt", "/data/./x/../up/one.txt"]',
        "WORKDIR /data/up\nCOPY one.txt .",
    ],
)
def test_a_copy_through_a_link_is_refused_with_its_line(context: Path, line: str):
    _, refused = read_dockerfile(f"FROM debian\nCOPY linked /data\n{line}\n", context)
    assert [refusal.line for refusal in refused] == [2 + len(line.splitlines())]
    assert "/data/up is no folder, but a file or link that an earlier line has put there" in refused[0].reason


def test_files_and_links_replace_each_other_but_no_folder(context: Path):
    both = "FROM debian\nCOPY linked/up/main.py /data/up\nCOPY linked /data\nCOPY linked /data\n"
    assert not read_dockerfile(both, context)[1]
    image, refused = read_dockerfile("FROM debian\nCOPY app/deep/more.txt /x/y/z.txt\nCOPY one.txt /x/y\n", context)
    assert not refused and image.copies[-1].target == "/x/y/one.txt"
    _, refused = read_dockerfile("FROM debian\nCOPY over /data\nCOPY linked /data\n", context)
    assert [(refusal.line, refusal.reason) for refusal in refused] == [(3, "/data/up is a folder of an earlier line")]


def test_a_package_of_debian_counts_with_its_version(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shell_commands, "system_packages", lambda: {"git": "1:2.39"})
    assert shell_commands.missing_system_package("git") == shell_commands.missing_system_package("git=1:2.39") == ""
    assert "has version 1:2.39 of git" in shell_commands.missing_system_package("git=2")
    assert "apt-get install clang" in shell_commands.missing_system_package("clang")
