"""The host as a workspace sees it, and bubblewrap's command line that shows it.

`stage.py` builds the root of a workspace below `/tmp` of its own, since it can read all paths of the host; bubblewrap, which may
not be able to, shows that root as it is.
"""

import os
import resource
import shutil
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vime.agent.bubblewrap import PACKAGES, interpreter, package_folders
from vime.agent.workspace.contract import HOME, TREE
from vime.config import WorkspaceConfig

NOBODY = 65534
GIT, SCRATCH, PROGRAMS = "/run/workspace/git", "/run/workspace/scratch", "/run/workspace/bin"
"""The repository of the prepared tree alone, the folder in which our own git commands write, and one with `python`."""
SCRATCH_BYTES, SCRATCH_FILES = 64 * 2**20, 20_000
MOST_OPEN_FILES = 16384
CHANNEL, CODE, FILTER = 3, 4, 5
"""Numbers of the files that the first process inherits: its socket, its code, and the filter for bubblewrap."""
_STAGE = "/tmp"
_ETC = ("alternatives", "ld.so.cache", "fonts", "chromium.d", "localtime")
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_WRITABLE = {
    "writable/shm": "/dev/shm",
    "writable/tmp": "/tmp",
    "writable/home": HOME,
    "tree": TREE,
    "scratch": SCRATCH,
}
_FILES = {
    "/etc/passwd": f"agent:x:{NOBODY}:{NOBODY}:agent:{HOME}:/bin/bash\n",
    "/etc/group": f"agent:x:{NOBODY}:\n",
    "/etc/hosts": "127.0.0.1 localhost workspace\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_BOOT = (
    "import marshal,os,sys\n"
    f"for name,code in marshal.load(open({CODE},'rb')):\n"
    " module=sys.modules[name]=type(sys)(name);exec(code,module.__dict__)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The host as a workspace sees it: paths with their places inside, files with their content, links; and the command for it.

    Example: `View(binds={"/usr": "/usr"}, files={"/etc/hosts": "127.0.0.1 localhost"}, links={"/bin": "usr/bin"}, command=[…])`.
    """

    binds: dict[str, str]
    files: dict[str, str]
    links: dict[str, str]
    command: list[str]


@lru_cache(maxsize=16)
def view_of(
    packages: tuple[str, ...], visible: tuple[str, ...], num_processes: int, places: tuple[tuple[str, str], ...] = ()
) -> View:
    """The view of all workspaces with these settings.

    `num_processes` is the limit that each process inside has; `places` are further places with their folders of the tree.
    """
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "bubblewrap is missing: ask workspace_problem() first"
    links = {str(link): os.readlink(link) for name in _TOP if (link := Path("/", name)).is_symlink()}
    command = [bwrap, "--unshare-all", "--unshare-user", "--as-pid-1", "--new-session", "--cap-drop", "ALL"]
    command += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "workspace", "--clearenv"]
    command += ["--ro-bind", f"{_STAGE}/root", "/", "--proc", "/proc", "--dev", "/dev"]
    for name, target in (*_WRITABLE.items(), *((f"tree/{name}", target) for target, name in places)):
        command += ["--bind", f"{_STAGE}/{name}", target]
    command += ["--remount-ro", "/dev", "--chdir", TREE, "--seccomp", str(FILTER), "--"]
    command += [interpreter(), "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT, str(CHANNEL), str(num_processes)]
    links |= {"/var/tmp": "/tmp"} | {f"{PROGRAMS}/{name}": interpreter() for name in ("python", "python3")}
    return View(binds=_shown(packages, visible), files=_FILES, links=links, command=command)


def becomes_nobody() -> bool:
    """True if workspaces are started as the user `nobody`: by root, except in a user namespace that lacks this user."""
    ranges = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return os.geteuid() == 0 and any(first <= NOBODY < first + count for first, _, count in ranges)


def empty_folders() -> list[str]:
    """The folders inside that something is mounted on."""
    return ["/proc", "/dev", "/root", *_WRITABLE.values()]


def writable_folders(config: WorkspaceConfig) -> dict[str, str]:
    """The memory file systems of a workspace, with their limits."""
    return {
        "writable": f"size={config.disk_bytes},nr_inodes={config.num_files}",
        "scratch": f"size={SCRATCH_BYTES + 2 * config.diff_bytes},nr_inodes={SCRATCH_FILES}",
    }


def limits_of(config: WorkspaceConfig) -> dict[int, int]:
    """The kernel's limits of each process. Address space is not limited: programs like node reserve far more than they use."""
    return {
        resource.RLIMIT_NOFILE: MOST_OPEN_FILES,
        resource.RLIMIT_FSIZE: config.disk_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }


def environment_of(config: WorkspaceConfig) -> dict[str, str]:
    """The variables of a command."""
    binaries = [PROGRAMS, str(Path(interpreter()).parent), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    return {
        "PATH": ":".join(dict.fromkeys(binaries)),
        "HOME": HOME,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",  # bytecode would be among the changes of a tree that does not ignore it
        **({"PYTHONPATH": PACKAGES} if config.packages else {}),
    }


def _shown(packages: tuple[str, ...], visible: tuple[str, ...]) -> dict[str, str]:
    """The system's programs and libraries, the interpreter and its packages; no home folder and no other settings."""
    prefix = Path(sys.base_prefix).resolve()
    folders = [Path("/usr")] + ([prefix] if prefix not in (Path("/usr"), Path("/"), Path("/usr/local")) else [])
    folders += [path for name in _TOP if (path := Path("/", name)).is_dir() and not path.is_symlink()]
    folders += [path for name in _ETC if (path := Path("/etc", name)).exists()]
    shown = {str(path): str(path) for path in (*folders, *map(Path, visible))}
    return shown | {str(folder): f"{PACKAGES}/{name}" for name, folder in package_folders(list(packages)).items()}
