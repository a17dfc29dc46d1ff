"""Task folders: limits and variables that are honoured, keys and files that are refused, and rows."""

import logging
from pathlib import Path

import pytest

from agentic.harbor.rehearsal import write_task
from agentic.harbor.rows import rows
from agentic.harbor.task import TASK, HarborTask, RefusedError
from vime.errors import ConfigError
from vime.preflight.compose import compose_run
from vime.preflight.validation import find_problems

REFUSED_KEYS = {
    "[environment]\ngpus = 1": "environment.gpus = 1",
    '[environment]\nos = "Windows"': "environment.os = 'Windows'",
    "[environment]\ntpu = {type = 'v4', topology = '2x2'}": "environment.tpu",
    "[[environment.mcp_servers]]\nname = 'a'": "environment.mcp_servers",
    "[environment.healthcheck]\ncommand = 'true'": "environment.healthcheck",
    "[environment]\nallow_internet = true": "environment.allow_internet = True",
    "[environment]\nnetwork_mode = 'public'": "environment.network_mode = 'public'",
    "[agent]\nnetwork_mode = 'allowlist'": "agent.network_mode = 'allowlist'",
    "[agent]\ntimeout_sec = 0": "agent.timeout_sec = 0",
    "[verifier]\nenvironment_mode = 'separate'": "verifier.environment_mode = 'separate'",
    "[verifier.environment]\ncpus = 1": "verifier.environment",
    "[[steps]]\nname = 'one'": "steps",
    "[verifier.env]\nKEY = '${NO_SUCH_VARIABLE}'": "verifier.env.KEY = '${NO_SUCH_VARIABLE}'",
    "[environment]\nworkdir = '/etc'": "WORKDIR /etc",
    "[agent": "is no TOML",
}


@pytest.mark.parametrize("text", REFUSED_KEYS)
def test_each_kind_of_key_that_needs_more_than_a_workspace_is_refused_by_name(tmp_path: Path, text: str):
    folder = write_task(tmp_path / "task", "Oslo", **{"task.toml": text})
    with pytest.raises(RefusedError) as error:
        HarborTask.read(folder)
    assert len(error.value.refusals) == 1 and REFUSED_KEYS[text] in str(error.value)


COMPOSE = """
services:
  main:
    build: {context: "${CONTEXT_DIR}/..", dockerfile: "${CONTEXT_DIR}/Dockerfile"}
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment: ["TEST_DIR=${TEST_DIR}"]
    volumes: ["${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
    deploy: {resources: {limits: {memory: "${MEMORY}"}}}
"""


def test_a_compose_file_that_only_names_the_build_is_read_and_hides_tests_and_solution(tmp_path: Path):
    files = {"environment/docker-compose.yaml": COMPOSE, "environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY app/ /app/\n"}
    folder = write_task(tmp_path / "task", "Oslo", **files, **{"app/a.txt": "a"})
    assert [copied.source for copied in HarborTask.read(folder).image.copies] == [tmp_path / "task/app"]
    (folder / "app/seen").symlink_to("../solution")
    for source in (".", "tests", "tests/test.sh", "solution/", "app/seen", "app/seen/solve.sh"):
        files["environment/Dockerfile"] = f"FROM debian\nWORKDIR /app\nCOPY {source} /app/\n"
        with pytest.raises(RefusedError, match=r"Dockerfile:3: .* the agent would see the tests or the solution"):
            HarborTask.read(write_task(tmp_path / "task", "Oslo", **files))


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("environment/docker-compose.yaml", f"{COMPOSE}    privileged: true\n", "services.main.privileged"),
        ("environment/docker-compose.yaml", f"{COMPOSE}  database: {{image: postgres}}\n", "services.database"),
        ("environment/docker-compose.yaml", COMPOSE.replace("TEST_DIR=", "KEY="), "services.main.environment"),
        ("environment/docker-compose.yaml", COMPOSE.replace("${HOST_VERIFIER_LOGS_PATH}", "/var/lib"), "services.main.volumes"),
        ("environment/docker-compose.yaml", COMPOSE.replace("/..", "/../.."), "services.main.build"),
        ("environment/docker-compose.yaml", f"{COMPOSE}networks: {{a: {{}}}}\n", "networks"),
        ("environment/compose.yml", "{}", "docker compose is not supported"),
        ("environment/compose.yml", "[", "docker compose is not supported"),
        ("trajectory.json", "{}", "continues no earlier conversation"),
    ],
)
def test_files_that_need_more_are_refused(tmp_path: Path, name: str, text: str, named: str):
    with pytest.raises(RefusedError) as error:
        HarborTask.read(write_task(tmp_path / "task", "Oslo", **{name: text}))
    assert any(refusal.file == name and named in str(refusal) for refusal in error.value.refusals)


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("tests/linked", "/etc/passwd"),
        ("tests/deep/linked", "../../.."),
        ("solution/linked", "/etc"),
        ("environment/app/deep/linked", "/etc"),
        ("environment/app/linked", "../../tests"),
        ("environment/linked", "/nowhere/yet"),
        ("instruction.md", "/etc/passwd"),
        ("task.toml", "/dev/null"),
        ("tests", "/etc"),
        ("environment", "/etc"),
        ("environment", "tests"),
    ],
)
def test_a_link_that_leads_outside_is_refused(tmp_path: Path, place: str, target: str):
    folder = write_task(tmp_path / "task", "Oslo")
    (folder / "tests/own.sh").symlink_to("test.sh")
    (folder / "tests/loop").symlink_to("loop")
    (folder / "environment/app").mkdir()
    (folder / "environment/app/notes").symlink_to("../notes.txt")
    assert HarborTask.read(folder)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    if (folder / place).exists():
        (folder / place).rename(tmp_path / "away")
    (folder / place).symlink_to(target)
    outside = "environment/" if place.startswith("environment") else "the task's folder"
    with pytest.raises(RefusedError, match=f"{place}: leads outside of {outside}"):
        HarborTask.read(folder)


@pytest.mark.parametrize("workdir", ["../../etc", "app"])
def test_a_working_folder_is_absolute(tmp_path: Path, workdir: str):
    files = {"task.toml": f"[environment]\nworkdir = '{workdir}'"}
    with pytest.raises(RefusedError, match=f"WORKDIR {workdir}`: {workdir} does not begin with /"):
        HarborTask.read(write_task(tmp_path / "task", "Oslo", **files))


def test_a_folder_without_its_files_names_all_of_them(tmp_path: Path):
    (tmp_path / "task.toml").write_text("[environment]\ndocker_image = 'a/b'\n")
    with pytest.raises(RefusedError) as error:
        HarborTask.read(tmp_path)
    assert {refusal.file for refusal in error.value.refusals} >= {"instruction.md", "environment/Dockerfile", "tests/test.sh"}
    assert "environment.docker_image = 'a/b'" in str(error.value)


def test_limits_and_variables_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GIVEN", "here")
    text = """
        version = "1.0"
        [metadata]
        anything = "counts"
        [agent]
        timeout_sec = 12
        [verifier]
        timeout_sec = 7.5
        env = {A = "${GIVEN}", B = "${NO_SUCH_VARIABLE:-instead}"}
        [environment]
        workdir = "/work/place"
        cpus = 1
        network_mode = "no-network"
        env = {LANG = "C"}
        [solution]
        env = {C = "1"}
    """
    folder = write_task(tmp_path / "task", "Oslo", **{"task.toml": text})
    task = HarborTask.read(folder, host_variables=["GIVEN", "NO_SUCH_VARIABLE"])
    assert (task.agent_seconds, task.tests_seconds, task.workdir) == (12, 7.5, "/work/place")
    assert {"/work", "/app"} == task.image.places and task.environment == {"LANG": "C"}
    assert task.tests_environment == {"A": "here", "B": "instead"} and task.solution_environment == {"C": "1"}
    usual = HarborTask.read(write_task(tmp_path / "other", "Oslo", **{"task.toml": ""}))
    assert (usual.agent_seconds, usual.tests_seconds) == (None, 600.0)


@pytest.mark.parametrize("part", ["environment", "verifier", "solution"])
@pytest.mark.parametrize("value", ["${SECRET}", "${SECRET:-nothing}"])
def test_a_variable_of_the_host_is_read_only_where_the_settings_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, value: str
):
    monkeypatch.setenv("SECRET", "key")
    folder = write_task(tmp_path / "task", "Oslo", **{"task.toml": f"[{part}.env]\nA = '{value}'"})
    words = ["+method=harbor", "mode=plan", f"method.tasks={tmp_path}"]
    (problem,) = find_problems(compose_run(words).config)
    assert f"{part}.env.A = '{value}'" in problem.remedy and "method.host_variables=[SECRET]" in problem.remedy
    assert "key" not in problem.remedy
    assert not find_problems(compose_run([*words, "method.host_variables=[SECRET]"]).config)
    assert rows(9, 0, folder=str(tmp_path), host_variables=["SECRET"])
    task = HarborTask.read(folder, host_variables=["SECRET"])
    assert {"A": "key"} in (task.environment, task.tests_environment, task.solution_environment)


def test_packages_of_a_script_are_found_with_their_lines(tmp_path: Path):
    script = """\
#!/bin/bash
apt-get update && apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
uvx \\
  -p 3.13 \\
  -w pytest==8.4.1 --with=six,toml \\
  pytest /tests/test_outputs.py
pip3 install --break-system-packages numpy==1.26.4 >/dev/null 2>&1 || {
if ! uv pip install -r /tests/needs.txt; then exit 1; fi
uv run --with attrs pytest -q
python3 -m pip --version
"""
    task = HarborTask.read(write_task(tmp_path / "task", "Oslo", **{"tests/test.sh": script, "tests/needs.txt": "iniconfig\n"}))
    assert [(package.name, package.line) for package in task.tests.python] == [
        *(("pytest==8.4.1", 4), ("six", 4), ("toml", 4), ("pytest", 4)),
        *(("numpy==1.26.4", 8), ("attrs", 10), ("iniconfig", 9)),
    ]
    assert [package.name for package in task.tests.system] == ["curl"]


@pytest.mark.parametrize(
    "line", ["pip install git+https://a.b/c", "uvx -w $PACKAGE pytest", "apt-get install -y no-such-package"]
)
def test_a_line_of_a_script_that_installs_something_else_is_refused(tmp_path: Path, line: str):
    with pytest.raises(RefusedError, match=r"tests/test.sh:2: `"):
        HarborTask.read(write_task(tmp_path / "task", "Oslo", **{"tests/test.sh": f"#!/bin/bash\n{line}\n"}))


def test_refused_tasks_are_named_each_with_its_line_or_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_task(tmp_path / "good", "Oslo")
    for name in ("bad", "worse"):
        write_task(tmp_path / name, "Oslo", **{"environment/Dockerfile": "FROM debian\nWORKDIR /app\nRUN make\n"})
    with pytest.raises(ConfigError) as error:
        rows(9, 0, folder=str(tmp_path))
    assert [str(problem.value) for problem in error.value.problems] == [str(tmp_path / "bad"), str(tmp_path / "worse")]
    assert "environment/Dockerfile:3: `RUN make`" in str(error.value) and "method.skip_refused=true" in str(error.value)
    with caplog.at_level(logging.WARNING):
        found = rows(9, 0, folder=str(tmp_path), skip_refused=True)
    assert [Path(row[TASK]).name for row in found] == ["good"] and "2 of 3 tasks" in caplog.text
    with pytest.raises(ConfigError, match="all 1 tasks are refused"):
        rows(9, 0, folder=str(tmp_path / "bad"), skip_refused=True)
    with pytest.raises(ConfigError, match="has a task"):
        rows(9, 0, folder=str(tmp_path / "good/tests"))


def test_a_plan_names_refused_tasks_and_a_life_that_is_too_short(tmp_path: Path):
    write_task(tmp_path / "good", "Oslo")
    write_task(tmp_path / "bad", "Oslo", **{"environment/Dockerfile": "FROM rust:1\nWORKDIR /app\n"})
    words = ["+method=harbor", "mode=plan", f"method.tasks={tmp_path}"]
    found = find_problems(compose_run(words).config)
    assert [(problem.key, problem.value) for problem in found] == [("data.train.generator_args.folder", str(tmp_path / "bad"))]
    assert "environment/Dockerfile:1: `FROM rust:1`" in found[0].remedy
    assert not find_problems(compose_run([*words, "method.skip_refused=true"]).config)
    found = find_problems(compose_run([*words, "method.skip_refused=true", "workspace.life_seconds=600"]).config)
    assert [problem.key for problem in found] == ["workspace.life_seconds"] and "660 seconds" in found[0].remedy
