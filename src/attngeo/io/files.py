"""Files and folders: written atomically, locked, cached, and read as text.

A file or a folder that is written atomically appears complete, or not at all: its content goes to a temporary file (or
folder) in the same directory, which is renamed when it is complete. A crash halfway leaves what was there before, and
several processes may write the same path.

    atomic_file, write_file           replace a file
    atomic_folder                     make a folder
    remove_unfinished                 delete what killed processes left behind
    check_writable, check_new_folder  find out early that a path cannot be written
    write_errors                      report the errors of the operating system in one line
    folder_lock                       keep other processes out of a folder
    cache_dir, cache_file             the cache folder, and files in it
    read_text                         the text that a user names
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from attngeo.errors import AttngeoError, InputError

TEMPORARY = ".part-"  # of the names of temporary files and folders


@contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` when the context ends without an error.

    The new file has the permissions of any new file (the umask). If `path` is a symbolic link, the file it points to is
    replaced; if it is a device or a pipe, it is written directly.

    durable: force the content to disk before the rename; after a power failure `path` has the old or the new content
    """
    if _is_special(path):
        with open(path, "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    temporary = _temporary(target)
    with open(temporary, "xb") as file:
        try:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
            file.close()  # before the rename: Windows renames no open file
            os.replace(temporary, target)
        except BaseException:
            _discard(file, temporary)
            raise


def write_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write `content` to `path` as `atomic_file` does."""
    with atomic_file(path, durable=durable) as file:
        file.write(content)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the context ends without an error, and is removed otherwise.

    `path` must not exist, or be an empty folder. If it is a symbolic link to an empty folder, that folder is replaced.
    """
    check_new_folder(path)
    with write_errors(path):
        target = Path(os.path.realpath(path))
        temporary = _temporary(target)
        temporary.mkdir()
        try:
            yield temporary
            if os.name == "nt" and target.is_dir():
                target.rmdir()  # Windows does not rename onto a folder, even an empty one
            os.replace(temporary, target)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, AttngeoError) and str(temporary) in str(error):  # the caller knows `path` only
                raise type(error)(str(error).replace(str(temporary), str(path))) from error
            raise


def remove_unfinished(folder: Path, seconds: float = 0) -> None:
    """Delete the temporary files that killed processes left in `folder`.

    seconds: only those that nobody has written to for so long; by default all, for a caller who holds the lock of the
        folder
    """
    for path in folder.glob(f"{TEMPORARY}*"):
        with suppress(OSError):  # another process removed it first
            if path.is_file() and time.time() - path.stat().st_mtime >= seconds:
                path.unlink()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError raised inside into an AttngeoError of one line about `path`."""
    try:
        yield
    except OSError as error:
        raise AttngeoError(f"{path}: cannot be written ({error.strerror or error})") from error


def check_writable(path: Path) -> None:
    """Raise if the file `path` could not be written, before the work that produces its content."""
    with write_errors(path):
        if path.is_dir():
            raise AttngeoError(f"{path}: is a folder, expected a file name")
        if not _is_special(path):
            _check_parent(path, path.parent)


def check_new_folder(path: Path) -> None:
    """Raise if `path` could not become a folder of results, before the work that produces its content."""
    with write_errors(path):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise AttngeoError(f"{path}: exists already, expected a new or an empty folder")
        _check_parent(path, path.absolute().parent)


def _check_parent(path: Path, parent: Path) -> None:
    if not parent.is_dir():
        raise AttngeoError(f"{path}: the folder {parent} does not exist")
    if not os.access(parent, os.W_OK):
        raise AttngeoError(f"{path}: the folder {parent} cannot be written to")


def _is_special(path: Path) -> bool:
    """Tell whether `path` is a device, a pipe or a socket, such as /dev/null: it must not be replaced by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _temporary(target: Path) -> Path:
    """Return an unused name beside `target`; a file made under it gets the permissions of an ordinary file."""
    return target.parent / f"{TEMPORARY}{secrets.token_hex(8)}"


def _discard(file: IO[bytes], temporary: Path) -> None:
    """Close and remove a temporary file, whatever state an error has left it in."""
    with suppress(OSError):  # a full disk reports its error once more
        file.close()
    temporary.unlink(missing_ok=True)


@contextmanager
def folder_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of `folder` inside the context. Platforms without file locks get no lock.

    wait: if another process holds the lock, wait for it; by default this is an error

    >>> with folder_lock(Path(".")):
    ...     print("no other process is at work in this folder")
    no other process is at work in this folder
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise AttngeoError(f"{folder}: another process is using this folder") from None
        yield
    finally:
        os.close(handle)


def cache_dir() -> Path:
    """Return the cache folder, which may not exist yet; the environment is read at every call."""
    if own := os.environ.get("ATTNGEO_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "attngeo"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "attngeo"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "attngeo" / "Cache"
    return Path.home() / ".cache" / "attngeo"


@contextmanager
def cache_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of the cache for writing, atomically; its folder is made if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        yield file


def read_text(path: Path) -> str:
    """Return the text in a UTF-8 file, without a byte order mark; InputError in one line where it is none."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
