"""Our own git commands in a workspace, for its changes and for patches.

They see the tree, and nothing else that its programs could have written. They run inside, so that nothing of the tree is ever run
or followed outside, with the repository of the prepared tree that the programs cannot change, an index and new objects in a
folder of their own, and no settings.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from vime.agent.memory_file import sealed_file
from vime.agent.workspace.channel import ChannelReply
from vime.agent.workspace.contract import TREE
from vime.agent.workspace.patch_paths import paths_of, refusal
from vime.agent.workspace.results import Applied, CommandResult, Diff
from vime.agent.workspace.running_command import Started
from vime.agent.workspace.view import GIT, SCRATCH
from vime.config import WorkspaceConfig

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "TMPDIR": SCRATCH,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_DIR": GIT,
    "GIT_WORK_TREE": TREE,
    "GIT_INDEX_FILE": f"{SCRATCH}/index",
    "GIT_OBJECT_DIRECTORY": f"{SCRATCH}/objects",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{GIT}/objects",
}
_ADD = "git add --all --ignore-errors . || test $? -eq 1 || exit 3\n"
"""Status 1 says that some files could not be read; they then count as unchanged."""
_DIFF = "exec git diff-index --cached --patch --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color HEAD"
_INNER_REPOSITORIES = f"""\
find . -mindepth 2 -name .git -prune -print > {SCRATCH}/inner
while IFS= read -r found; do
    inner=${{found%/.git}}
    git check-ignore -q --no-index "$inner" && continue
    git update-index --force-remove "${{inner#./}}" 2> /dev/null
    find "${{inner#./}}" -name .git -prune -o '(' -type f -o -type l ')' -print0 | git update-index -z --add --stdin || exit 3
done < {SCRATCH}/inner
"""
"""Adds the files of repositories that the agent has made in the tree, which git would add as submodules."""
_SAID = ("adding embedded git repository", "does not have a commit checked out")
MESSAGE_CHARACTERS = 2000
_PATCH = f"{SCRATCH}/patch"
_LADDER = f"""\
git apply --whitespace=nowarn {_PATCH} && echo apply && exit
git add --all --ignore-errors . || test $? -eq 1 || exit 3
before=$(git write-tree) || exit 3
git apply --3way --whitespace=nowarn {_PATCH} && echo 3way && exit
git read-tree --reset -u "$before" || exit 3
patch --strip=1 --batch --forward --dry-run --input={_PATCH} 1>&2 || exit 1
patch --strip=1 --batch --forward --no-backup-if-mismatch --reject-file=- --input={_PATCH} 1>&2 && echo patch
"""
"""Prints the name of the step that worked. `git apply` applies all or nothing; a merge with conflicts is undone; `patch` is tried
before it writes."""
_STEPS = ("apply", "3way", "patch")
_OUTPUT_BYTES = 65536


class Ask(Protocol):
    """Takes a request to the first process; see `Channel.ask`."""

    def __call__(self, verb: str, *fields: str | bytes, path: str = "", files: Sequence[int] = ()) -> Awaitable[ChannelReply]:
        """Sends it and waits for the reply."""
        ...


Run = Callable[[Started], Awaitable[tuple[CommandResult, bytes]]]
"""Runs a command and returns its end, and its stdout as it came."""


def git_script(script: str, config: WorkspaceConfig, *, most_bytes: int) -> Started:
    """A script of sh in which `git` sees the tree alone."""
    return Started(
        words=["/bin/sh", "-c", script],
        folder=TREE,
        environment=ENVIRONMENT,
        stdin=b"",
        seconds=config.command_seconds,
        keep_bytes=2 * most_bytes,
        most_bytes=most_bytes,
        mode="inner",
    )


async def snapshot(ask: Ask, run: Run, config: WorkspaceConfig) -> Diff:
    """All changes of the tree, as a snapshot of all files compared with the prepared commit.

    The tree is added to a copy of the prepared index, so that staged, committed, untracked, deleted and binary changes all count,
    and only files whose times or numbers have changed are read. The agent's own HEAD and index are neither used nor changed.
    """
    await ask("fresh")
    end, patch = await run(git_script(_ADD + _DIFF, config, most_bytes=config.diff_bytes))
    if any(said in end.stderr for said in _SAID):
        end, patch = await run(git_script(_INNER_REPOSITORIES + _DIFF, config, most_bytes=config.diff_bytes))
    message = end.stderr[-MESSAGE_CHARACTERS:]
    if end.succeeded:
        return Diff(patch=patch, reason="finished", message=message)
    return Diff(patch=b"", reason="failed" if end.reason in ("finished", "killed") else end.reason, message=message)


async def apply_patch(patch: bytes, ask: Ask, run: Run, config: WorkspaceConfig) -> Applied:
    """Applies all of a patch to the tree by one step of a ladder, or nothing and says why not."""
    if not patch.strip():
        return Applied(step="empty")
    why = refusal(patch)
    if not why:
        linked = (await ask("linked", *sorted(paths_of(patch)))).fields
        why = f"{linked[0].decode(errors='replace')} is behind a symbolic link" if linked else ""
    if why:
        return Applied(step="refused", message=why)
    await ask("fresh")
    file = sealed_file(patch if patch.endswith(b"\n") else patch + b"\n")
    try:
        await ask("write", _PATCH, files=[file])
    finally:
        os.close(file)
    end, printed = await run(git_script(_LADDER, config, most_bytes=_OUTPUT_BYTES))
    step = (printed.decode(errors="replace").split() or [""])[-1]
    if end.succeeded and step in _STEPS:
        return Applied(step=step, message=end.stderr[-MESSAGE_CHARACTERS:])
    return Applied(step="failed", message=f"{end.reason}: {end.stderr[-MESSAGE_CHARACTERS:]}".strip())
