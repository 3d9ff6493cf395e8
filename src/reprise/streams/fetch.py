"""Data files on disk, found and opened safely; CIFAR-100 fetched: resumable, checksummed, all or nothing."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from reprise.errors import InputError

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int | None], object]
"""Called with the bytes there so far and the total, which is None where the server does not say it."""

CIFAR_FOLDER = "cifar-100-python"
OFFICIAL_URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
OFFICIAL_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
OFFICIAL_FILES = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
BLOCK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte before a connection counts as lost


def shown(path: PathLike) -> str:
    """The path as text that can always be printed: names on disk need not be valid UTF-8."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def some(names: Iterable[object], limit: int = 10) -> str:
    """The first few names and how many more there are."""
    known = [shown(str(name)) for name in names]
    return ", ".join(known[:limit]) + (f" and {len(known) - limit} more" if len(known) > limit else "")


def locate(root: PathLike, name: str, inside: Iterable[str], way_out: str) -> Path:
    """The data folder `name`: below `root`, or `root` itself when it holds one of the entries `inside`."""
    if os.path.isdir(Path(root, name)):
        return Path(root, name)
    if not any(os.path.exists(Path(root, entry)) for entry in inside):
        what = f"holds no folder `{name}`" if os.path.isdir(root) else "is no folder"
        what = what if os.path.lexists(root) else "does not exist"
        raise InputError(f"{shown(root)} {what}; {way_out}.")
    return Path(root)


def listing(folder: PathLike) -> list[str]:
    """The names in a folder, sorted, without hidden ones (`.DS_Store`, `._x.jpg`)."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{shown(folder)} cannot be listed ({_why(error)}); put a readable folder there."
        ) from error


def open_file(path: PathLike) -> io.BufferedReader:
    """A regular file, open for reading. Pipes and devices are refused: opening one can block for ever."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return open(path, "rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the name
        raise InputError(
            f"{shown(path)} cannot be read ({_why(error)}); put a readable file there."
        ) from error
    raise InputError(f"{shown(path)} is not a regular file; put the data file in its place.")


def md5_of(path: PathLike) -> str:
    """The MD5 of a file: the checksum CIFAR's authors publish, good against damage, not against malice."""
    with open_file(path) as file:
        try:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        except OSError as error:
            raise InputError(f"{shown(path)} cannot be read ({_why(error)}); get another copy.") from error


def _why(error: Exception) -> str:
    """The reason alone, without the path or address that the sentence around it names already."""
    reason = getattr(error, "reason", error)
    return shown(str(getattr(reason, "strerror", None) or reason or type(error).__name__))


def fetch_cifar100(
    data_dir: PathLike,
    url: str = OFFICIAL_URL,
    progress: Progress | None = None,
    *,
    md5: str = OFFICIAL_MD5,
    files: Mapping[str, str] = OFFICIAL_FILES,
) -> str:
    """Puts the official CIFAR-100 files into `data_dir`/cifar-100-python; returns a sentence that says so.

    A file there with another MD5 is replaced, whole or not at all. What arrived of an interrupted download
    stays beside the folder as `cifar-100-python.tar.gz.part`, and the next call goes on from it.
    """
    folder, part = Path(data_dir, CIFAR_FOLDER), Path(data_dir, f"{CIFAR_FOLDER}.tar.gz.part")
    wanted = {name: digest for name, digest in files.items() if not is_intact(folder / name, digest)}
    if not wanted:
        return f"{shown(folder)}: already there."
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        _download(url, part, progress)
        try:
            if (found := md5_of(part)) != md5:
                raise InputError(f"{url} gave MD5 {found}, not {md5}; it was removed, run the command again.")
            _extract(part, folder, wanted)
        except InputError:
            part.unlink()  # it would be refused again
            raise
        part.unlink()
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(
            f"{shown(data_dir)} cannot be written ({_why(error)}); name another --data."
        ) from error
    return f"{shown(folder)}: fetched {some(wanted)}."


def is_intact(path: PathLike, md5: str) -> bool:
    """Whether the file can be read and has this MD5."""
    try:
        return md5_of(path) == md5
    except InputError:
        return False


def _download(url: str, part: Path, progress: Progress | None) -> None:
    """Completes the file `part` from `url`, or says in a sentence why not and keeps what arrived."""
    if not url.startswith(("https://", "http://")):
        raise InputError(f"the address {url!a} is neither https:// nor http://; give one that is.")
    try:
        _receive(url, part, progress)
    except urllib.error.HTTPError as error:
        error.close()
        # 416: nothing lies beyond what is there already, so it is complete or wrong, which its MD5 will tell.
        if error.code != 416 or not part.exists():
            raise InputError(f"{url} answered {error.code} {_why(error)}; try again later.") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        again = f"what arrived is kept in {shown(part)}, run the command again to go on"
        raise InputError(f"{url} was not fetched ({_why(error)}); {again}.") from error


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    """Appends to `part` what it lacks, or writes it anew where the server does not resume."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        partial = response.status == 206
        if partial and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            part.unlink(missing_ok=True)  # not the range asked for: the next call asks for everything
            raise ConnectionError("the server sent another range than asked for")
        done = done if partial else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        with open(part, "ab" if partial else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                done += len(block)
                if progress:
                    progress(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _extract(archive: Path, folder: Path, files: Mapping[str, str]) -> None:
    """Moves the named files from the archive into `folder`, once all of them have the right MD5."""
    members = {f"{CIFAR_FOLDER}/{name}" for name in files}
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".cifar-100-") as scratch:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    path = PurePosixPath(member.name)
                    if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
                        raise InputError(
                            f"{archive.name} holds unsafe {member.name!a}; use the official one."
                        )
                    if member.name in members:
                        tar.extract(member, scratch, filter="data")
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise InputError(f"{archive.name} is damaged ({_why(error)}); run the command again.") from error
        fresh = {name: Path(scratch, CIFAR_FOLDER, name) for name in files}
        if wrong := [name for name in files if not is_intact(fresh[name], files[name])]:
            raise InputError(
                f"{archive.name} holds no {some(wrong)} with the right MD5; use the official one."
            )
        folder.mkdir(exist_ok=True)
        for name in files:
            with open(fresh[name], "rb+") as file:
                os.fsync(file.fileno())  # the content must reach the disk before the name does
            os.replace(fresh[name], folder / name)
