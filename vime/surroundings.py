"""Workarounds for a process's surroundings, in one place: streams, home folder, temporary folders, proxies.

None of these may end a run: a terminal that is not UTF-8 or is gone, a HOME that cannot be written, a TMPDIR too long for
sockets, a proxy between two programs of one machine. All of them are the choice of the user or the system that starts the
process. Every fix is handed on by environment variables, so that servers, trainer ranks and the libraries in them have it too.
"""

import codecs
import contextlib
import functools
import io
import locale
import os
import re
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Addresses of this machine only, as variables like NO_PROXY name them."""
LONGEST_BASE = 24
"""Bytes of a folder's path that leave room for the sockets of Ray and of vLLM below it: a socket's path has at most 107."""
ERROR = "error"
"""Python's word for warnings that end a program."""
STREAM_ENCODING = "PYTHONIOENCODING"
TRIED_BYTES = 4096
NUM_NAMES = 10
"""The number of other users who may have taken the name of a private folder."""


class PatientStream(io.TextIOWrapper):
    """A stream of text into an open file, whose writer does not fail if the disk is full or the terminal is gone.

    This loses the written data. The file below is Python's own: a signal whose handler raises, between a write in Python and its
    return, would make the buffer write the same once more.
    """

    def __init__(self, number: int, *, encoding: str, errors: str) -> None:
        """`number` is the file's descriptor, which stays open."""
        file = open(number, "wb", closefd=False)  # noqa: SIM115 -- for the life of the stream
        super().__init__(file, encoding=encoding, errors=errors, line_buffering=True)

    def write(self, text: str, /) -> int:
        """Writes as much as possible, and reports that all of it was written."""
        with contextlib.suppress(OSError):  # there is nowhere left to say so
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Writes the buffered data, as far as possible."""
        with contextlib.suppress(OSError):
            super().flush()


def settle() -> None:
    """Prepares this process, and the environment of those that it starts; a second call changes nothing."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would be taken for it
            os.open(os.devnull, os.O_RDWR)
    os.environ.pop("PYTHONOPTIMIZE", None)  # Ray does not start without its docstrings
    os.environ.pop(STREAM_ENCODING, None)  # about our own terminal, not about the logs of programs that we start
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 -- for the life of the process
        elif stream is getattr(sys, f"__{name}__") and not isinstance(stream, PatientStream):
            stream.flush()
            patient = PatientStream(stream.fileno(), encoding=stream.encoding, errors="replace")
            setattr(sys, name, patient)
            setattr(sys, f"__{name}__", patient)
    if any(option.startswith(ERROR) for option in sys.warnoptions):  # libraries warn at every import
        warnings.simplefilter("default")
        os.environ.pop("PYTHONWARNINGS", None)
    os.environ |= {name: value for name, value in _instead_of_home().items() if name not in os.environ}


def restart_in_utf8() -> None:
    """Starts this program again in Python's UTF-8 mode if the locale is another: files are UTF-8 regardless of the terminal."""
    if sys.flags.utf8_mode or not sys.executable or codecs.lookup(locale.getpreferredencoding(False)).name == "utf-8":
        return
    shown = getattr(sys.stdout, "encoding", None) or "ascii"
    environment = os.environ | {"PYTHONUTF8": "1", STREAM_ENCODING: f"{shown}:replace"}
    os.execve(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]], environment)


def no_proxy(*hosts: str) -> dict[str, str]:
    """The variables with which HTTP clients reach this machine and other `hosts` of the run directly, without any proxy."""
    found: Iterable[str] = (entry.strip() for name in ("NO_PROXY", "no_proxy") for entry in os.environ.get(name, "").split(","))
    direct = ",".join(dict.fromkeys(entry for entry in (*found, *LOCAL_HOSTS, *hosts) if entry))
    return {"NO_PROXY": direct, "no_proxy": direct}


def proxy_of(url: str) -> str | None:
    """The proxy that the environment sets for a URL; None for a direct connection."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in LOCAL_HOSTS or proxy_bypass(host):
        return None
    found = getproxies()
    proxy = found.get(parts.scheme) or found.get("all")
    return proxy if proxy is not None and urlsplit(proxy).scheme in ("http", "https") else None


def cache_folder(name: str) -> Path:
    """The folder in which `name` is kept for later runs: `$XDG_CACHE_HOME/vime/NAME`, by default below `~/.cache`.

    If it does not exist and cannot be written there, it is in a folder for temporary files.
    """
    base = _cache_base()
    usual = base / "vime" / name if base is not None else None
    if usual is not None and (os.path.exists(usual) or _takes_files(usual.parent)):
        return usual
    return private_folder("cache") / "vime" / name


def short_folder() -> Path:
    """A folder for temporary files below which sockets can be made: the usual one, unless its path is too long or odd."""
    usual = Path(tempfile.gettempdir())
    is_plain = re.fullmatch(r"[\w./+-]+", str(usual), re.ASCII) and len(str(usual)) <= LONGEST_BASE
    short = [usual] if is_plain else []
    others = (Path(path) for path in ("/tmp", "/var/tmp", "/dev/shm", f"/run/user/{os.getuid()}"))
    return next((folder for folder in (*short, *others) if _takes_files(folder)), usual)


def private_folder(name: str) -> Path:
    """A folder of this user alone, the same for all processes; another user may have taken a folder of the first name before.

    Raises PermissionError if others have taken all its names.
    """
    folder = Path()
    for number in range(NUM_NAMES):
        folder = short_folder() / f"vime-{name}-{os.getuid()}{f'-{number}' * bool(number)}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
    raise PermissionError(f"{folder} and {NUM_NAMES - 1} others of such names must belong to this user alone: remove them")


def _instead_of_home() -> dict[str, str]:
    """Variables for libraries that keep files in HOME, where it cannot be written or does not exist; else none."""
    base = _cache_base()
    if base is not None and _takes_files(base / "vime"):
        return {}
    ours = private_folder("home")
    caches = ours / ".cache"
    variables = {
        "XDG_CACHE_HOME": str(caches),
        "XDG_CONFIG_HOME": str(ours / ".config"),
        "XDG_DATA_HOME": str(ours / ".local" / "share"),
        "TRITON_HOME": str(ours),
        "FLASHINFER_WORKSPACE_BASE": str(ours),
        "VLLM_CACHE_ROOT": str(caches / "vllm"),
    }
    models = base / "huggingface" if base is not None else None
    variables["HF_HOME"] = str(models if models is not None and os.path.isdir(models) else caches / "huggingface")
    variables["HF_DATASETS_CACHE"] = str(caches / "huggingface" / "datasets")
    variables["HF_MODULES_CACHE"] = str(caches / "huggingface" / "modules")
    return variables if base is not None else variables | {"HOME": str(ours)}


def _cache_base() -> Path | None:
    """The user's folder for caches; None for a user without a home."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no HOME, and no entry among the users of this machine
        return None


@functools.cache
def _takes_files(folder: Path) -> bool:
    """True if a file can be written there; rights alone do not tell, as on a full or a read-only disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(TRIED_BYTES))
        return True
    except OSError:
        return False
