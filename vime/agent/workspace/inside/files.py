"""The work of a workspace's first process with files: everything is resolved inside, so links lead nowhere else.

A verb takes the fields of a request and the files that came with it, and returns fields and files to send back; these are then
closed. It raises OSError. Relative paths begin in the tree.
"""

import _socket
import posix

SCRATCH, TEMPLATE = "/run/workspace/scratch", "/run/workspace/git/index"
_CHUNK, _BACKLOG, _INVALID = 1 << 20, 256, 22
_KIND, _REGULAR, _LINK = 0o170000, 0o100000, 0o120000
"""S_IFMT, S_IFREG and S_IFLNK."""
Fields = list[bytes]
Files = list[int]


def read(fields: Fields, _: Files) -> tuple[Fields, Files]:
    """Opens a file. Fields: path."""
    return [], [_opened(fields[0], posix.O_RDONLY)]


def write(fields: Fields, files: Files) -> tuple[Fields, Files]:
    """Writes a file, with the folders above it. Fields: path; files: the content."""
    _make_folders(fields[0])
    target = _opened(fields[0], posix.O_WRONLY | posix.O_CREAT)
    try:
        posix.ftruncate(target, 0)
        _copy(files[0], target)
    finally:
        posix.close(target)
    return [], []


def listen(_: Fields, __: Files) -> tuple[Fields, Files]:
    """A socket that listens on the workspace's own loopback. Returns its port."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(_BACKLOG)
    return [str(listener.getsockname()[1]).encode()], [listener.detach()]


def fresh(_: Fields, __: Files) -> tuple[Fields, Files]:
    """Empties the folder of our own git commands, and puts the index of the prepared tree there."""
    _empty(SCRATCH)
    posix.mkdir(f"{SCRATCH}/objects")
    with open(TEMPLATE, "rb") as template, open(f"{SCRATCH}/index", "wb") as index:
        _copy(template.fileno(), index.fileno())
    return [], []


def linked(fields: Fields, _: Files) -> tuple[Fields, Files]:
    """The paths, among some of the tree, that lie behind a symbolic link. Fields: paths."""
    return [path for path in fields if _is_linked(path)], []


VERBS = {b"read": read, b"write": write, b"listen": listen, b"fresh": fresh, b"linked": linked}


def _opened(path: bytes, flags: int) -> int:
    """Opens a regular file; never waits for a pipe, and refuses the kernel's pseudo-files in /proc."""
    file = posix.open(path, flags | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC, 0o644)
    found = posix.fstat(file)
    if found.st_mode & _KIND == _REGULAR and found.st_dev != posix.stat("/proc").st_dev:
        return file
    posix.close(file)
    raise OSError(_INVALID, "")


def _copy(source: int, target: int) -> None:
    while posix.sendfile(target, source, None, _CHUNK):
        pass


def _empty(folder: str) -> None:
    with posix.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                posix.chmod(entry.path, 0o700)
                _empty(entry.path)
                posix.rmdir(entry.path)
            else:
                posix.unlink(entry.path)


def _is_linked(path: bytes) -> bool:
    parts = path.split(b"/")
    for number in range(1, len(parts)):
        try:
            if posix.lstat(b"/".join(parts[:number])).st_mode & _KIND == _LINK:
                return True
        except OSError:  # there is nothing yet
            return False
    return False


def _make_folders(path: bytes) -> None:
    """Makes the folders above a path, as far as they are missing."""
    parts = path.split(b"/")
    for number in range(1, len(parts)):
        if folder := b"/".join(parts[:number]):
            try:
                posix.mkdir(folder)
            except FileExistsError:
                pass
