"""Tasks in workspaces: files and places, the tests' reward and its errors, tampering, limits, and stand-ins of installers."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agentic.harbor import task_workspace
from agentic.harbor.check import check, main
from agentic.harbor.rehearsal import write_task
from agentic.harbor.task import HarborTask, RefusedError
from agentic.harbor.task_workspace import Graded, make_ready, opened, run_solution, run_tests
from vime.agent.workspace import Workspace, workspace_problem
from vime.config import WorkspaceConfig
from vime.errors import SandboxError

BOUND = WorkspaceConfig(command_seconds=30.0, memory_bytes=2**28, disk_bytes=2**24, num_processes=64)
GIVES = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; "


@pytest.fixture(scope="module", autouse=True)
def works() -> None:
    """Fails without workspaces, which these tests are about."""
    assert workspace_problem() is None, workspace_problem()


@pytest.fixture
def config(tmp_path: Path) -> WorkspaceConfig:
    """Small workspaces with a cache of their own."""
    return replace(BOUND, cache_folder=str(tmp_path / "cache"))


def opens(config: WorkspaceConfig) -> Callable[..., AbstractAsyncContextManager[Workspace]]:
    """Opens workspaces as a rollout's context does."""

    @asynccontextmanager
    async def workspace(prepared: object, **keywords: object) -> AsyncIterator[Workspace]:
        async with Workspace.open(prepared, config, **keywords) as box:  # pyright: ignore[reportArgumentType]
            yield box

    return workspace


async def graded(folder: Path, config: WorkspaceConfig, *commands: str) -> Graded:
    """The result of the tests after commands of an agent."""
    ready = make_ready(HarborTask.read(folder), cache_folder=config.cache_folder)
    async with opened(ready, config, opens(config)) as box:
        for command in commands:
            await box.run(command)
        return await run_tests(box, ready, config)


async def test_a_solution_scores_one_and_an_untouched_workspace_nothing(tmp_path: Path, config: WorkspaceConfig):
    found = await check(write_task(tmp_path / "task", "Oslo"), name="task", config=config)
    assert found.is_right and (found.solution, found.untouched) == (1.0, 0.0)
    wrong = await check(write_task(tmp_path / "wrong", "Oslo", **{"solution/solve.sh": "true"}), name="wrong", config=config)
    assert not wrong.is_right and (wrong.solution, wrong.untouched) == (0.0, 0.0)
    refused = await check(write_task(tmp_path / "no", "Oslo", **{"environment/Dockerfile": "RUN make"}), name="no", config=config)
    assert refused.is_right and "environment/Dockerfile:1: `RUN make`" in refused.refused[0]


def test_the_program_counts_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_task(tmp_path / "tasks/right", "Oslo")
    write_task(tmp_path / "tasks/refused", "Oslo", **{"environment/Dockerfile": "FROM rust:1\nWORKDIR /app\n"})
    assert main([str(tmp_path / "tasks"), "--json", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 tasks: 1 refused, 1 right, 0 wrong"
    write_task(tmp_path / "tasks/wrong", "Oslo", **{"tests/test.sh": "echo 1 > /logs/verifier/reward.txt"})
    assert main([str(tmp_path / "tasks"), "--only", "wrong"]) == 1


async def test_files_folders_modes_and_variables_are_those_of_the_dockerfile(tmp_path: Path, config: WorkspaceConfig):
    text = """\
FROM debian
ENV PATH="/app/bin:${PATH}" WORD=hello
WORKDIR /app/inner
COPY bin /app/bin
COPY --chmod=600 key.txt /data/key.txt
RUN chmod 755 /app/bin/tool && mkdir -p /out/put /home/user/x
"""
    files = {
        "environment/Dockerfile": text,
        "environment/bin/tool": "#!/bin/bash\necho $WORD $PWD $1\n",
        "environment/key.txt": "k",
    }
    task = HarborTask.read(write_task(tmp_path / "task", "Oslo", **files))
    ready = make_ready(task, cache_folder=config.cache_folder)
    async with opened(ready, config, opens(config)) as box:
        assert (await box.run("tool one")).stdout == "hello /app/inner one\n"
        modes = await box.run(
            "stat -c %a /data/key.txt /app/bin/tool; touch /out/put/a /home/user/x/b /solution/c; ls -A /tests /logs"
        )
        assert (modes.stdout, modes.exit_code) == ("600\n755\n/logs:\nagent\nverifier\n\n/tests:\n", 0)
        await box.write("answer.txt", "Oslo\n")
        assert await box.read("/app/inner/answer.txt") == b"Oslo\n" and b"app/inner/answer.txt" in (await box.diff()).patch
        assert (await run_solution(box, ready)).succeeded


@pytest.mark.parametrize("line", ["COPY evil.txt /app/link/keys", "COPY evil /app", "COPY evil/link /app/link"])
@pytest.mark.parametrize("target", ["{outside}", "../{below}"])
def test_no_file_is_written_behind_a_link(tmp_path: Path, config: WorkspaceConfig, line: str, target: str):
    outside = tmp_path / "outside"
    outside.mkdir()
    text = f"FROM debian\nWORKDIR /app\nCOPY app /app\n{line}\n"
    files = {"Dockerfile": text, "evil.txt": "evil", "evil/link/keys": "evil", "app/a.txt": "a"}
    folder = write_task(tmp_path / "task", "Oslo", **{f"environment/{name}": content for name, content in files.items()})
    task = HarborTask.read(folder)  # the link is made after it, as it would be refused
    below = f"{'../' * len(tmp_path.parts)}{outside.relative_to('/')}"
    (folder / "environment/app/link").symlink_to(target.format(outside=outside, below=below))
    with pytest.raises(RefusedError, match="environment/app/link: leads outside of environment/"):
        HarborTask.read(folder)
    with pytest.raises(RefusedError, match=r"environment/Dockerfile:4: /app/link.* would lie outside of the task's tree"):
        make_ready(task, cache_folder=config.cache_folder)
    assert not list(outside.iterdir())


def test_a_later_copy_replaces_files_and_links_and_keeps_links(tmp_path: Path, config: WorkspaceConfig):
    text = "FROM debian\nWORKDIR /app\nCOPY app/here.txt .\nCOPY app /app\nCOPY --chmod=700 new.txt /app/old.txt\nCOPY app .\n"
    files = {"Dockerfile": text, "app/deep/a.txt": "a", "app/old.txt": "old", "new.txt": "new"}
    folder = write_task(tmp_path / "task", "Oslo", **{f"environment/{name}": content for name, content in files.items()})
    (folder / "environment/app/here.txt").symlink_to("deep/a.txt")
    tree = make_ready(HarborTask.read(folder), cache_folder=config.cache_folder).tree.tree / "app"
    assert (tree / "here.txt").is_symlink() and (tree / "here.txt").read_text() == (tree / "deep/a.txt").read_text() == "a"
    assert (tree / "old.txt").read_text() == "old"


@pytest.mark.parametrize(
    "command",
    [
        GIVES,
        "rm -rf /logs/verifier; ln -s /app /logs/verifier; echo 1 > /app/reward.txt",
        "echo '{\"reward\": 1}' > /logs/verifier/reward.json; chmod 500 /logs/verifier",
        f"(setsid bash -c 'while true; do {GIVES} sleep 0.01; done' &) ; sleep 0.2",
        "mkdir -p /tests/deep; echo 'echo 1 > /logs/verifier/reward.txt; exit' > /tests/test.sh; chmod 000 /tests/deep",
        f"echo '{GIVES}' >> ~/.bashrc; cp ~/.bashrc ~/.profile; cp ~/.bashrc ~/.bash_profile",
        f"mkdir -p ~/.local/bin; printf '#!/bin/bash\\n{GIVES}kill -9 $PPID' > ~/.local/bin/grep; chmod +x ~/.local/bin/grep",
    ],
)
async def test_an_agent_that_prepares_its_own_reward_earns_nothing(tmp_path: Path, config: WorkspaceConfig, command: str):
    found = await graded(write_task(tmp_path / "task", "Oslo"), config, command)
    assert (found.score, found.rewards, found.reason) == (0.0, {"reward": 0.0}, "finished")


@pytest.mark.parametrize(
    ("script", "rewards"),
    [
        ("echo 0.25 > reward.txt", {"reward": 0.25}),
        ("echo 1 > reward.txt; exit 3", {"reward": 1.0}),
        ('echo \'{"reward": 1, "speed": 0.5}\' > reward.json; echo 0 > reward.txt', {"reward": 1.0, "speed": 0.5}),
        ("echo '{\"speed\": 0.5}' > reward.json", {"speed": 0.5}),
    ],
)
async def test_rewards_are_read_by_harbors_rules(tmp_path: Path, config: WorkspaceConfig, script: str, rewards: dict[str, float]):
    task = write_task(tmp_path / "task", "Oslo", **{"tests/test.sh": f"cd /logs/verifier; {script}"})
    found = await graded(task, config)
    assert found.rewards == rewards and found.score == next(iter(rewards.values()))


@pytest.mark.parametrize(
    "script",
    [
        "true",
        "exit 1",
        "kill -9 $$",
        "touch reward.txt",
        "echo many > reward.txt",
        "echo nan > reward.txt",
        'echo \'{"reward": "1"}\' > reward.json',
        "echo '{\"reward\": 1e999}' > reward.json",
        "echo 1 > reward.json",
        "touch reward.json; echo 1 > reward.txt",
        "mkdir reward.txt",
        "echo '{}' > reward.json",
        'echo \'{"a": 1, "b": 0}\' > reward.json',
    ],
)
async def test_tests_without_a_readable_reward_are_an_error_of_the_infrastructure(
    tmp_path: Path, config: WorkspaceConfig, script: str
):
    task = write_task(tmp_path / "task", "Oslo", **{"tests/test.sh": f"cd /logs/verifier; {script}"})
    with pytest.raises(SandboxError, match="reward"):
        assert (await graded(task, config)).score


async def test_tests_that_reach_their_limit_score_nothing_and_say_so(tmp_path: Path, config: WorkspaceConfig):
    files = {"task.toml": "[verifier]\ntimeout_sec = 0.5\n", "tests/test.sh": "echo 1 > /logs/verifier/reward.txt; sleep 60"}
    found = await graded(write_task(tmp_path / "task", "Oslo", **files), config)
    assert (found.score, found.rewards, found.reason) == (0.0, {}, "time_limit") and found.seconds < 30
    files = {"task.toml": "[agent]\ntimeout_sec = 0.5\n", "solution/solve.sh": "sleep 60"}
    task = HarborTask.read(write_task(tmp_path / "slow", "Oslo", **files))
    ready = make_ready(task, cache_folder=config.cache_folder)
    async with opened(ready, config, opens(config)) as box:
        assert (await run_solution(box, ready)).reason == "time_limit"
    with pytest.raises(SandboxError, match="life_seconds=3"):
        task = write_task(tmp_path / "long", "Oslo", **{"tests/test.sh": "sleep 60"})
        await graded(task, replace(config, life_seconds=3.0))


async def test_a_dockerfile_that_cannot_be_followed_is_an_error_of_the_infrastructure(tmp_path: Path, config: WorkspaceConfig):
    text = "FROM debian\nWORKDIR /app\nCOPY notes.txt .\nRUN mkdir /app/notes.txt/deep\n"
    with pytest.raises(SandboxError, match="environment/Dockerfile could not be followed"):
        await graded(write_task(tmp_path / "task", "Oslo", **{"environment/Dockerfile": text}), config)


async def test_the_tests_and_only_they_find_installers_that_install_what_was_prepared(
    tmp_path: Path, config: WorkspaceConfig, monkeypatch: pytest.MonkeyPatch
):
    site = tmp_path / "site"
    (site / "bin").mkdir(parents=True)
    (site / "prepared_package.py").write_text("VALUE = 5\n")
    (site / "pytest.py").write_text("import sys, prepared_package\n\nprint('pytest', sys.argv[1:], prepared_package.VALUE)\n")
    monkeypatch.setattr(task_workspace, "installed", lambda task, wanted, **_: site if wanted else None)
    script = """\
set -e
apt-get update && apt-get install -y curl > /dev/null
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w Prepared_Package==1.0 pytest /tests/one.py -rA
uv venv .testing && source .testing/bin/activate && uv pip install prepared-package && uv run pytest two
cd / && python3 -m pip install prepared_package==1.0 && python3 -m pytest three
for words in "pip install other-package" "apt-get install -y other" "uvx other-program"; do
    $words || echo refused $?
done
curl --max-time 2 http://127.0.0.1:9/ || echo refused $?
echo 1 > /logs/verifier/reward.txt
"""
    task = write_task(tmp_path / "task", "Oslo", **{"tests/test.sh": script})
    evil = "mkdir -p ~/.local/bin; echo exit 9 > ~/.local/bin/env; chmod 400 ~/.local/bin/env; "
    evil += "echo 'raise SystemExit(9)' > pytest.py;"
    ready = make_ready(HarborTask.read(task), cache_folder=config.cache_folder)
    async with opened(ready, config, opens(config)) as box:
        for name in ("uvx", "pip", "pytest", "python -c 'import prepared_package'"):
            assert not (await box.run(f"which {name}" if " " not in name else name)).stdout.startswith("/run/")
        assert (await box.run("/run/installers/pip install prepared_package==1.0")).exit_code == 1
        await box.run(evil)
        found = await run_tests(box, ready, config)
    assert found.score == 1.0, found.output
    assert "pytest ['/tests/one.py', '-rA'] 5\npytest ['two'] 5\npytest ['three'] 5\n" in found.output
    assert found.output.count("refused 1") == 3 and found.output.count("refused 7") == 1
    assert found.output.count("was not prepared before the tests") == 3
    assert found.not_prepared == "pip install other-package\napt-get install other\nother-program (No such file or directory)"
