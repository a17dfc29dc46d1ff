"""Makes the prepared tree of a repository, once per content: what workspaces show below their writable layer.

    prepared = prepare(Path("tasks/astropy-12907.tar.gz"))
    # Prepared(folder=PosixPath("~/.cache/vime/workspaces/5e88…"), commit="9fceb0…")

A prepared tree is a git repository with one commit and nothing else, so that no reference solution can be found in its objects.
It has a fixed author and date, so that equal contents have equal commits. Beside it lies the same repository again, out of the
reach of programs that work on the tree, with an index whose times and numbers of files are those of the tree.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from vime import surroundings
from vime.agent.workspace.sources import Source, digest_of, unpack
from vime.agent.workspace.view import NOBODY, becomes_nobody
from vime.errors import SandboxError

FIXED_SECONDS = 946_684_800
"""The date of every prepared file and commit, the first second of the year 2000."""
GIT_SECONDS = 600
"""Time limit of one git command; also large repositories need only some of it."""
_BUILDING = ".building-"
_LAYOUT = "1"
"""A new one makes all trees again."""
_WHO = {"NAME": "vime", "EMAIL": "vime@localhost", "DATE": f"{FIXED_SECONDS} +0000"}
_SETTINGS = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tautocrlf = false
\tfsmonitor = false
\thooksPath = /dev/null
\texcludesFile = /dev/null
\tattributesFile = /dev/null
[gc]
\tauto = 0
[maintenance]
\tauto = false
[user]
\tname = agent
\temail = agent@localhost
"""
_ATTRIBUTES = "* !text !eol !crlf !ident !filter !diff !merge !working-tree-encoding !whitespace !export-subst\n"
"""Attributes that override all .gitattributes of a tree: contents are compared byte by byte, and no program is run for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A prepared tree. Example: `Prepared(folder=Path("/root/.cache/vime/workspaces/5e88…"), commit="9fceb0…")`."""

    folder: Path
    commit: str
    """The hash of its only commit."""

    @property
    def tree(self) -> Path:
        """The files, with a `.git` of their own."""
        return self.folder / "tree"

    @property
    def pristine(self) -> Path:
        """The repository that programs cannot change, with the index."""
        return self.folder / "git"


def prepare(source: Source, *, cache_folder: str | Path | None = None, keep_git: bool = False, strip: int = 0) -> Prepared:
    """The prepared tree of a folder, an archive or files in memory; it blocks, and is made only if the cache lacks it.

    With `keep_git` the source's own `.git` stays, with its history, in place of the new one. `strip` leading folders are taken
    off an archive's paths. Raises ValueError for an archive that cannot be unpacked, SandboxError if git fails.
    """
    cache = (Path(cache_folder).expanduser() if cache_folder else surroundings.cache_folder("workspaces")).absolute()
    cache.mkdir(parents=True, exist_ok=True)
    final = cache / f"{digest_of(source, keep_git=keep_git)[:40]}-{strip}-{_LAYOUT}"
    if not final.is_dir():
        building, lock = _start(cache)
        try:
            _build(source, building, keep_git=keep_git, strip=strip)
            with contextlib.suppress(OSError):  # another process was faster
                building.rename(final)
        finally:
            shutil.rmtree(building, ignore_errors=True)
            os.close(lock)
    commit = (final / "git" / "refs" / "heads" / "main").read_text().strip()
    return Prepared(folder=final, commit=commit)


def _start(cache: Path) -> tuple[Path, int]:
    """Makes a folder to build in, and the lock on it that says its process is alive; removes what dead processes have left.

    One process at a time, because a new folder without its lock looks like one that a dead process has left.
    """
    turn = _open(cache)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _remove_leftovers(cache)
        building = cache / f"{_BUILDING}{uuid.uuid4().hex}"
        building.mkdir()
        lock = _open(building)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return building, lock
    finally:
        os.close(turn)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _build(source: Source, folder: Path, *, keep_git: bool, strip: int) -> None:
    tree, pristine = folder / "tree", folder / "git"
    tree.mkdir()
    unpack(source, tree, keep_git=keep_git, strip=strip)
    _settle(tree)
    _git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    (pristine / "info").mkdir(exist_ok=True)
    (pristine / "info" / "attributes").write_text(_ATTRIBUTES)
    (pristine / "config").write_text(_SETTINGS)
    _git(folder, "add", "--all", "--force", ".")
    commit = _git(folder, "commit-tree", "-m", "The repository as it was prepared", _git(folder, "write-tree"))
    _git(folder, "update-ref", "refs/heads/main", commit)
    _git(folder, "repack", "-a", "-d", "--quiet")
    if not (tree / ".git").exists():
        shutil.copytree(pristine, tree / ".git")
    _own(folder)
    _git(folder, "update-index", "--refresh", "-q")
    if not keep_git:
        shutil.copyfile(pristine / "index", tree / ".git" / "index")
        _own(tree / ".git")


def _settle(tree: Path) -> None:
    """Gives all files a fixed date and one of two modes, so that their owner can read and write them."""
    for found, folders, files in os.walk(tree, topdown=False):
        for name in (*files, *folders):
            path = Path(found, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or (os.access(path, os.X_OK) and path.stat().st_mode & 0o111) else 0o644)
            os.utime(path, (FIXED_SECONDS, FIXED_SECONDS), follow_symlinks=False)


def _own(folder: Path) -> None:
    """Gives everything to the user of workspaces, if that is another one."""
    if becomes_nobody():
        for found, folders, files in os.walk(folder):
            for name in (".", *folders, *files):
                os.chown(Path(found, name), NOBODY, NOBODY, follow_symlinks=False)


def _git(folder: Path, *words: str) -> str:
    """Runs git on the tree with the repository beside it, without any user's settings, as the user that workspaces see."""
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in _WHO.items()}
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_DIR": str(folder / "git"),
        "GIT_WORK_TREE": str(folder / "tree"),
        **who,
    }
    sandbox = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--"]
    sandbox = [] if becomes_nobody() else sandbox
    command = [*sandbox, "git", *words]
    try:
        done = subprocess.run(command, env=environment, cwd=folder / "tree", capture_output=True, text=True, timeout=GIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"git {words[0]} took longer than {GIT_SECONDS} s while a repository was prepared") from error
    if done.returncode:
        raise SandboxError(f"git {words[0]} failed while a repository was prepared: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def _remove_leftovers(cache: Path) -> None:
    """Removes what processes have left that died while they prepared; a living one holds a lock."""
    for folder in cache.glob(f"{_BUILDING}*"):
        with contextlib.suppress(OSError):
            lock = _open(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
