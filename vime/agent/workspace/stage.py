"""Prepares the folders of workspaces and starts bubblewrap in them: a program of its own, started once by an owner.

It is passed as text to the bare interpreter, with the number of its socket. Each request is one packet of JSON, with a socket for
the workspace's first process, a file for error messages, that process's code and the seccomp filter. For each request it forks a
child with mounts of its own, so that nothing has to be unmounted: a memory file system with a limit holds everything that is
written, and an overlay shows it above the prepared tree. The child becomes bubblewrap; as root it first becomes the user
`nobody`, since limits on processes do not bind root. The program ends with its owner.
"""

import array
import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

_BASE, _ROOT, _WRITABLE, _TREE = "/tmp", "/tmp/root", "/tmp/writable", "/tmp/tree"
_BIND, _REC, _PRIVATE, _NOSUID, _NODEV = 4096, 16384, 1 << 18, 2, 4
"""MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID and MS_NODEV."""
_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000
"""CLONE_NEWNS and CLONE_NEWUSER."""
_HANDED = 3
"""The number from which on files are handed to bubblewrap."""
_MOST_BYTES, _NUM_FILES = 1 << 18, 4
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Starts workspaces until the owner is gone."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the owner watches them
    nobody, user, group = int(sys.argv[2]), os.geteuid(), os.getegid()
    drops = user == 0 and _is_mapped(nobody)
    _call("unshare", _NEW_MOUNTS | (0 if user == 0 else _NEW_USERS))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            _write(f"/proc/self/{name}", text)
    _mount(None, "/", flags=_REC | _PRIVATE)
    gc.disable()  # a collection in a child would copy all memory that it shares
    while True:
        packet, attached, _, _ = owner.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(4 * _NUM_FILES))
        if not packet:
            return
        files = array.array("i")
        for *_, data in attached:
            files.frombytes(data)
        if os.fork() == 0:
            owner.close()
            _become(json.loads(packet), list(files), (nobody, nobody) if drops else (user, group), drops)
        for file in files:
            os.close(file)


def _become(request: dict[str, Any], files: list[int], owner: tuple[int, int], drops: bool) -> None:
    """Turns a child into bubblewrap, or ends it with the reason on the workspace's socket."""
    channel = socket.socket(fileno=os.dup(files[0]))
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel.send(b"staged")  # which tells the owner the number of this process
        for group in request["control_groups"]:
            _write(group, "0")
        _call("unshare", _NEW_MOUNTS)
        _build(request, owner)
        if drops:
            os.setgroups([])
            os.setresgid(owner[1], owner[1], owner[1])
            os.setresuid(owner[0], owner[0], owner[0])
        _hand(files)
        for kind, most in request["limits"].items():
            hard = resource.getrlimit(int(kind))[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(int(kind), (most, most))
        os.chdir("/")
        os.execve(request["command"][0], request["command"], {})
    except OSError as error:
        channel.send(f"failed {error}".encode())
    finally:
        os._exit(1)


def _build(request: dict[str, Any], owner: tuple[int, int]) -> None:
    """Makes all folders that bubblewrap is given, below a temporary folder of this process's own."""
    sources = {target: os.open(path, os.O_PATH | os.O_CLOEXEC) for path, target in request["binds"].items()}
    tree = os.open(request["tree"], os.O_PATH | os.O_CLOEXEC)
    _mount("tmpfs", _BASE, "tmpfs", _NOSUID | _NODEV, "mode=755")
    for name, options in request["writable"].items():
        place = f"{_BASE}/{name}"
        os.mkdir(place)
        _mount("tmpfs", place, "tmpfs", _NOSUID | _NODEV, f"mode=755,uid={owner[0]},gid={owner[1]},{options}")
    for name, mode in (("upper", 0o755), ("work", 0o755), ("tmp", 0o777), ("shm", 0o777), ("home", 0o755)):
        os.mkdir(f"{_WRITABLE}/{name}")
        os.chown(f"{_WRITABLE}/{name}", *owner)
        os.chmod(f"{_WRITABLE}/{name}", mode)
    os.mkdir(_TREE)
    _overlay(f"/proc/self/fd/{tree}")
    for folder in request["places"]:
        _make(folder, owner)
    for folder in request["folders"]:
        os.makedirs(_ROOT + folder, exist_ok=True)
    for path, text in request["files"].items():
        os.makedirs(os.path.dirname(_ROOT + path), exist_ok=True)
        _write(_ROOT + path, text, create=True)
    for path, target in request["links"].items():
        os.makedirs(os.path.dirname(_ROOT + path), exist_ok=True)
        os.symlink(target, _ROOT + path)
    for target, source in sources.items():
        _show(f"/proc/self/fd/{source}", _ROOT + target)


def _show(source: str, target: str) -> None:
    """Binds a path of the host, with folders above its place."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, "", create=True)
    _mount(source, target, flags=_BIND | _REC)


def _make(folder: str, owner: tuple[int, int]) -> None:
    """Makes a folder of the tree, with those above it, as far as they are missing."""
    path = _TREE
    for name in folder.split("/"):
        path = f"{path}/{name}"
        if not os.path.isdir(path):
            os.mkdir(path)
            os.chown(path, *owner)


def _overlay(source: str) -> None:
    """Shows the prepared tree with a writable layer above it; where the kernel offers none, copies it into that layer."""
    upper, is_user = f"{_WRITABLE}/upper", os.geteuid() != 0 or not _is_mapped(1)
    try:
        name = f"{'user' if is_user else 'trusted'}.overlay.probe"  # without such attributes an overlay loses deleted folders
        os.setxattr(upper, name, b"y")
        os.removexattr(upper, name)
        options = f"lowerdir={source},upperdir={upper},workdir={_WRITABLE}/work"
        _mount("overlay", _TREE, "overlay", _NOSUID | _NODEV, options + (",userxattr" if is_user else ",redirect_dir=on"))
    except OSError:
        import shutil  # which takes long to import, and every child copies what is loaded

        shutil.copytree(source, upper, symlinks=True, dirs_exist_ok=True)
        _own(upper, os.stat(upper))
        _mount(upper, _TREE, flags=_BIND)


def _own(folder: str, owner: os.stat_result) -> None:
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(f"{path}/{name}", owner.st_uid, owner.st_gid, follow_symlinks=False)


def _is_mapped(number: int) -> bool:
    """True if this user namespace has a user of this number besides root, so that root can become it."""
    with open("/proc/self/uid_map") as file:
        return any(int(first) <= number < int(first) + int(count) for first, _, count in map(str.split, file))


def _hand(files: list[int]) -> None:
    """Puts the files where the command expects them (socket, code, filter), the messages at stderr, and closes all others."""
    channel, messages, *rest = (os.dup(file) for file in files)
    nothing = os.open("/dev/null", os.O_RDWR)
    kept = [nothing, nothing, messages, channel, *rest]
    high = [os.dup2(file, 100 + number) for number, file in enumerate(kept)]
    for number, file in enumerate(high):
        os.dup2(file, number)
    os.closerange(_HANDED + len(rest) + 1, 4096)


def _mount(source: "str | None", target: str, kind: "str | None" = None, flags: int = 0, options: str = "") -> None:
    names = (name.encode() if name is not None else None for name in (source, target, kind))
    _call("mount", *names, ctypes.c_ulong(flags), options.encode())


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{tuple(a for a in arguments if isinstance(a, bytes))}: {os.strerror(number)}")


def _write(path: str, text: str, *, create: bool = False) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


main()
