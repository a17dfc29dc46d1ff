"""Repositories as they come (a folder, an archive, files in memory), written to a folder of our own."""

import hashlib
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

Source = str | Path | Mapping[str, bytes | str]
"""A folder, a tar or zip archive, or the content of files by their paths."""
_CHUNK = 1 << 20
_MODE_AT, _LINK = 16, 0o120000


def digest_of(source: Source, *, keep_git: bool) -> str:
    """A digest of the content: the bytes of an archive, otherwise paths, contents, links and executable bits."""
    digest = hashlib.sha256(b"kept git" if keep_git else b"")
    if isinstance(source, Mapping):
        for path, content in sorted(source.items()):
            _add(digest, b"file", path.encode(), _bytes(content))
        return digest.hexdigest()
    found = Path(source)
    if found.is_dir():
        for path in _walk(found, keep_git=keep_git):
            _add(digest, *_described(found, path))
        return digest.hexdigest()
    with found.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def unpack(source: Source, folder: Path, *, keep_git: bool, strip: int) -> None:
    """Writes a source to an empty folder; `strip` leading folders are taken off an archive's paths.

    Raises ValueError for an archive of an unknown kind, or with a path that leads outside.
    """
    if isinstance(source, Mapping):
        for path, content in source.items():
            target = folder / _inside(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_bytes(content))
    elif Path(source).is_dir():
        shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True, ignore=_unwanted(keep_git))
    elif tarfile.is_tarfile(source):
        _unpack_tar(Path(source), folder, strip)
    elif zipfile.is_zipfile(source):
        _unpack_zip(Path(source), folder, strip)
    else:
        raise ValueError(f"{source}: is neither a folder nor a tar or zip archive")
    if not keep_git:
        for path in [*folder.rglob(".git")]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _unpack_tar(archive: Path, folder: Path, strip: int) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            name = _stripped(member.name, strip)
            if name is None:
                continue
            if member.islnk():
                member.linkname = _stripped(member.linkname, strip) or ""
            member.name = _inside(name)
            try:
                tar.extract(tarfile.data_filter(member, str(folder)), folder, set_attrs=True, filter="fully_trusted")
            except tarfile.FilterError as error:
                raise ValueError(f"{archive}: {error}") from error


def _unpack_zip(archive: Path, folder: Path, strip: int) -> None:
    with zipfile.ZipFile(archive) as found:
        for info in found.infolist():
            name = _stripped(info.filename, strip)
            if name is None or info.is_dir():
                continue
            target, mode = folder / _inside(name), info.external_attr >> _MODE_AT
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{archive}: {info.filename} leads outside")
            if stat.S_IFMT(mode) == _LINK:
                target.symlink_to(found.read(info).decode())
            else:
                target.write_bytes(found.read(info))
                target.chmod(0o755 if mode & 0o100 else 0o644)


def _stripped(name: str, strip: int) -> str | None:
    """A path without its first folders; None if nothing is left."""
    parts = [part for part in PurePosixPath(name).parts if part != "."][strip:]
    return "/".join(parts) or None


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name}: is not a path inside of the repository")
    return str(path)


def _unwanted(keep_git: bool) -> Callable[[str, list[str]], list[str]]:
    """The entries of a folder that are not copied."""

    def ignore(folder: str, names: list[str]) -> list[str]:
        paths = [Path(folder, name) for name in names]
        return [path.name for path in paths if (path.name == ".git" and not keep_git) or not _is_content(path)]

    return ignore


def _walk(folder: Path, *, keep_git: bool) -> Iterable[Path]:
    """All files and links below a folder, in a fixed order."""
    for path in sorted(folder.iterdir()):
        if path.name == ".git" and not keep_git:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, keep_git=keep_git)
        elif _is_content(path):
            yield path


def _is_content(path: Path) -> bool:
    """True if it is a file, a link or a folder, and not a socket, a pipe or a device."""
    return path.is_symlink() or path.is_file() or path.is_dir()


def _described(folder: Path, path: Path) -> tuple[bytes, bytes, bytes]:
    name = os.fsencode(path.relative_to(folder))
    if path.is_symlink():
        return b"link", name, os.fsencode(os.readlink(path))
    return b"program" if os.access(path, os.X_OK) else b"file", name, path.read_bytes()


def _add(digest: "hashlib._Hash", *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content
