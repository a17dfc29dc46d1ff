"""The changes that a workspace reports are those that git sees in an unconfined copy, whatever the agent does to its own git."""

import os
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.workspace.test_box import CONFIG
from vime.agent.workspace import Prepared, Workspace, prepare

PLAIN = ["--cached", "--patch", "--binary", "--full-index", "--no-renames", "--no-color"]
NAMES = ["a", "b c", "d/e", "d/f", "d/g/h", "ü", "x.log", "bin"]
WRITES = [
    "printf 'line %s\\n' $RANDOM{seed} > '{path}'",
    "printf 'a\\0{seed}\\377' > '{path}'",
    "printf 'no newline {seed}' >> '{path}'",
    "ln -sf '{other}' '{path}'",
    "printf 'crlf\\r\\n{seed}\\r\\n' > '{path}'",
]
EDITS = [
    *("mkdir -p \"$(dirname '{path}')\" && " + write for write in WRITES),
    "rm -rf '{path}'",
    "mv '{path}' '{other}.moved'",
    "chmod +x '{path}'",
    "git add -A '{path}'",
    "git add -f '{path}' && git commit -qm made",
    "git rm -q --cached '{path}'",
    "git stash -q",
    "rm -rf '{path}' && mkdir -p '{path}/inner' && echo {seed} > '{path}/inner/file'",
    "touch '{path}'",
    "printf '*.log\\n/bin\\n' > .gitignore",
]


def script(rng: random.Random) -> str:
    """A shell script of random edits; some of them fail."""
    lines = ["exec 2> /dev/null"]
    for _ in range(rng.randrange(1, 25)):
        path, other = rng.choices(NAMES, k=2)
        lines.append(rng.choice(EDITS).replace("$RANDOM", "").format(path=path, other=other, seed=rng.randrange(10**6)))
    return "\n".join(lines)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A repository with text, a binary file, a program, a link, folders, and a tracked file that is ignored."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "d" / "g").mkdir(parents=True)
    for name in ("a", "b c", "d/e", "d/g/h", "x.log"):
        (folder / name).write_text(f"{name}\nsecond\nthird\n")
    (folder / "bin").write_bytes(bytes(range(256)))
    (folder / "run.sh").write_text("true\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("d/e")
    (folder / ".gitignore").write_text("*.log\n")
    return prepare(folder, cache_folder=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("seed", range(12))
async def test_random_edits_give_the_patch_of_plain_git(seed: int, mixed: Prepared, tmp_path: Path):
    text = script(random.Random(seed))
    copy = tmp_path / "copy"
    shutil.copytree(mixed.tree, copy, symlinks=True)
    owner = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    plain = os.environ | owner | {"LANG": "C.UTF-8"}
    subprocess.run(["bash", "-c", text], cwd=copy, env=plain)
    index = plain | {"GIT_INDEX_FILE": str(tmp_path / "index")}
    subprocess.run(["git", "read-tree", mixed.commit], cwd=copy, env=index, check=True)
    subprocess.run(["git", "add", "--all", "."], cwd=copy, env=index, check=True)
    expected = subprocess.run(["git", "diff-index", *PLAIN, mixed.commit], cwd=copy, env=index, check=True, capture_output=True)
    async with Workspace.open(mixed, CONFIG) as box, Workspace.open(mixed, CONFIG) as other:
        await box.run(text)
        before = (await box.run("git status --porcelain; git rev-parse HEAD")).stdout
        changes = await box.diff()
        assert (changes.reason, changes.patch) == ("finished", expected.stdout), text
        assert (await box.run("git status --porcelain; git rev-parse HEAD")).stdout == before
        assert (await other.apply(changes.patch)).succeeded
        assert (await other.diff()).patch == changes.patch


TRICKS = {
    "hooks": "printf '#!/bin/sh\\ntouch /tmp/ran\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/*; cp .git/hooks/* /tmp",
    "a filter": "git config filter.f.clean 'touch /tmp/ran; cat'; echo '* filter=f' > .git/info/attributes",
    "a monitor": "git config core.fsmonitor 'touch /tmp/ran; false'",
    "an external diff": "git config diff.external 'touch /tmp/ran'; git config core.pager 'touch /tmp/ran'",
    "excludes": "echo '*' > .git/info/exclude; git config core.excludesFile /testbed/.git/info/exclude",
    "a home": "printf '[core]\\nfsmonitor = touch /tmp/ran\\n' > ~/.gitconfig",
    "excludes at home": "mkdir -p ~/.config/git; echo '*' > ~/.config/git/ignore",
    "no repository": "rm -rf .git",
    "a file for a repository": "rm -rf .git; echo 'gitdir: /tmp/elsewhere' > .git",
    "a link for a repository": "mv .git /tmp/moved; ln -s /tmp/moved .git",
    "assumed unchanged": "git update-index --assume-unchanged add.py; git update-index --skip-worktree other.txt",
    "a lock": "touch .git/index.lock",
    "another work tree": "git config core.worktree /tmp; git config core.bare true",
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
async def test_the_agents_own_git_has_no_influence_and_runs_nothing(trick: str, prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run(f"mkdir -p .git/hooks; {trick}; echo changed > add.py; echo new > made.txt; rm other.txt")
        changes = await box.diff()
        assert changes.reason == "finished"
        assert all(text in changes.patch for text in (b"+changed", b"b/made.txt", b"deleted file")), changes
        assert b"ran" not in changes.patch and (await box.run("ls /tmp/ran")).exit_code == 2


async def test_attributes_of_the_tree_change_no_content(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run("printf '* text eol=crlf\\n*.txt -diff\\n*.py ident\\n' > .gitattributes")
        await box.run("printf 'a\\r\\n$Id$\\n' > add.py; echo 4 > other.txt")
        patch = (await box.diff()).patch
        assert b"+a\r\n+$Id$\n" in patch and b"+4\n" in patch


async def test_a_repository_within_the_tree_counts_as_files(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box, Workspace.open(prepared, CONFIG) as other:
        await box.run("mkdir -p in/ner 'e m' && cd in && echo one > ner/one && git init -q && git add . && git commit -qm x")
        await box.run("cd 'e m' && git init -q && echo two > two")
        changes = await box.diff()
        assert changes.reason == "finished" and b"+one" in changes.patch and b"+two" in changes.patch, changes
        assert (await other.apply(changes.patch)).succeeded
        assert (await other.run("cat in/ner/one 'e m/two'")).stdout == "one\ntwo\n"


async def test_a_patch_that_is_too_large_is_none(prepared: Prepared):
    async with Workspace.open(prepared, replace(CONFIG, diff_bytes=10_000)) as box:
        await box.run("seq 10000 > many")
        changes = await box.diff()
        assert (changes.patch, changes.reason) == (b"", "output_limit")
        await box.run("seq 1000 > many")
        assert (await box.diff()).reason == "finished"


async def test_a_file_that_cannot_be_read_is_named(prepared: Prepared):
    async with Workspace.open(prepared, CONFIG) as box:
        await box.run("echo secret > locked; chmod 0 locked; echo open > open; mkfifo pipe")
        changes = await box.diff()
        assert changes.reason == "finished" and b"+open" in changes.patch and "locked" in changes.message
