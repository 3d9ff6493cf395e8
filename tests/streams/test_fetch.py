"""The download against a server on loopback: resumed, checksummed, unpacked safely, all or nothing."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from reprise.errors import InputError
from reprise.streams import fetch

CONTENT = {name: os.urandom(40_000) for name in ("train", "test", "meta")}
PART = "cifar-100-python.tar.gz.part"


def md5(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


FILES = {name: md5(raw) for name, raw in CONTENT.items()}


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def archive(*extra: tarfile.TarInfo, without: tuple[str, ...] = ()) -> bytes:
    """An archive like the official one, a stray file included, with `extra` members first."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info in extra:
            tar.addfile(info, io.BytesIO(b"\0" * info.size))
        tar.addfile(member("cifar-100-python", tarfile.DIRTYPE))
        for name, raw in {**CONTENT, "file.txt~": b"stray"}.items():
            if name not in without:
                info = member(f"cifar-100-python/{name}")
                info.size = len(raw)
                tar.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


@dataclass
class Server:
    """What the server holds, how it misbehaves, and the `Range` header of every request it got."""

    body: bytes
    url: str = ""
    status: int = 0
    resumes: bool = True
    shift: int = 0
    sent: int | None = None
    says_length: bool = True
    ranges: list[str | None] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.resumes else 0
        if self.status or (wanted and start >= len(self.body)):
            return handler.send_error(self.status or 416)
        start += self.shift
        body = self.body[start:]
        handler.send_response(206 if wanted and self.resumes else 200)
        if wanted and self.resumes:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        if self.says_length:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: self.sent])
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server(archive())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.answer(self)

        def log_message(self, *_arguments: Any) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "BLOCK", 4096)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        state.url = f"http://127.0.0.1:{running.server_port}/cifar-100-python.tar.gz"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def get(server: Server, data_dir: Path, **options: Any) -> str:
    return fetch.fetch_cifar100(data_dir, server.url, **{"md5": md5(server.body), "files": FILES, **options})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_fetched(data_dir: Path) -> None:
    """The three files, whole, and nothing else: no archive, no scratch folder."""
    assert names(data_dir) == ["cifar-100-python"]
    assert {path.name: path.read_bytes() for path in (data_dir / "cifar-100-python").iterdir()} == CONTENT


def test_the_official_values_are_the_published_ones() -> None:
    assert fetch.OFFICIAL_URL == "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
    assert fetch.OFFICIAL_MD5 == "eb9058c3a382ffc7106e4002c42a8d85"
    assert fetch.OFFICIAL_FILES["train"] == "16019d7e3df5f24257cddd939b257f8d"
    assert fetch.OFFICIAL_FILES["test"] == "f0ef6b0ae62326f3e7ffdfab6717acfc"
    assert fetch.OFFICIAL_FILES["meta"] == "7973b15100ade9c7d40fb424638fde48"


def test_fetches_the_three_files_and_tells_the_progress(server: Server, tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    said = get(server, tmp_path / "new" / "data", progress=lambda done, total: calls.append((done, total)))
    assert said == f"{tmp_path}/new/data/cifar-100-python: fetched train, test, meta."
    assert_fetched(tmp_path / "new" / "data")
    assert server.ranges == [None]
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1] == (len(server.body), len(server.body))
    assert len(calls) > 10


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path)
    assert get(server, tmp_path).endswith("cifar-100-python: already there.")
    assert len(server.ranges) == 1


def test_only_a_damaged_file_is_replaced(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path)
    (tmp_path / "cifar-100-python" / "test").write_bytes(b"damaged")
    kept = (tmp_path / "cifar-100-python" / "train").stat()
    assert get(server, tmp_path).endswith("fetched test.")
    assert_fetched(tmp_path)
    assert (tmp_path / "cifar-100-python" / "train").stat().st_ino == kept.st_ino


def test_an_interrupted_transfer_is_resumed(server: Server, tmp_path: Path) -> None:
    server.sent = 50_000
    with pytest.raises(
        InputError, match=f"ended after 50000 of {len(server.body)} bytes.; .*run the command again"
    ):
        get(server, tmp_path)
    assert names(tmp_path) == [PART]
    assert (tmp_path / PART).read_bytes() == server.body[:50_000]
    server.sent = None
    calls: list[tuple[int, int | None]] = []
    get(server, tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert_fetched(tmp_path)
    assert server.ranges == [None, "bytes=50000-"]
    assert calls[0] == (54_096, len(server.body))


def test_a_server_that_ignores_the_range_starts_anew(server: Server, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(b"the beginning of something else")
    server.resumes = False
    get(server, tmp_path)
    assert_fetched(tmp_path)
    assert server.ranges == ["bytes=31-"]


def test_a_complete_part_is_used_as_it_is(server: Server, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(server.body)
    get(server, tmp_path)  # the server answers 416: nothing lies beyond
    assert_fetched(tmp_path)


def test_a_part_that_is_too_long_is_removed(server: Server, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(server.body + b"more")
    with pytest.raises(InputError, match="it was removed, run the command again"):
        get(server, tmp_path)
    get(server, tmp_path)
    assert_fetched(tmp_path)


def test_another_range_than_asked_for_is_not_appended(server: Server, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(server.body[:100])
    server.shift = 7
    with pytest.raises(InputError, match="the server sent another range than asked for"):
        get(server, tmp_path)
    server.shift = 0
    get(server, tmp_path)
    assert_fetched(tmp_path)


def test_without_a_length_the_total_is_unknown(server: Server, tmp_path: Path) -> None:
    server.says_length = False
    totals = set()
    get(server, tmp_path, progress=lambda _done, total: totals.add(total))
    assert totals == {None}
    assert_fetched(tmp_path)


def test_a_wrong_md5_removes_the_download_and_unpacks_nothing(server: Server, tmp_path: Path) -> None:
    found = md5(server.body)
    with pytest.raises(
        InputError, match=f"gave MD5 {found}, not {'0' * 32}; it was removed, run the command again"
    ):
        get(server, tmp_path, md5="0" * 32)
    assert names(tmp_path) == []


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_an_error_of_the_server_keeps_what_is_there(status: int, server: Server, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(server.body[:100])
    server.status = status
    with pytest.raises(InputError, match=f"tar.gz answered {status} [A-Z].*; try again later."):
        get(server, tmp_path)
    assert (tmp_path / PART).read_bytes() == server.body[:100]


def test_no_server_is_one_sentence(server: Server, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(server.body[:100])
    server.url = "http://127.0.0.1:1/cifar-100-python.tar.gz"
    with pytest.raises(
        InputError, match=r"tar.gz was not fetched \(Connection refused\); what arrived is kept in"
    ):
        get(server, tmp_path)
    assert (tmp_path / PART).read_bytes() == server.body[:100]


def test_a_silent_server_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT", 0.1)
    release = threading.Event()
    server.answer = lambda _handler: release.wait(5)  # type: ignore[assignment, method-assign, misc]
    with pytest.raises(InputError, match="timed out"):
        get(server, tmp_path)
    release.set()


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "cifar", ""])
def test_only_http_is_spoken(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is neither https:// nor http://"):
        fetch.fetch_cifar100(tmp_path, url)


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1", "http://127.0.0.1:1/a b\n", "http://127.0.0.1:1/é"]
)
def test_an_address_that_is_none_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="was not fetched"):
        fetch.fetch_cifar100(tmp_path, url)


@pytest.mark.parametrize(
    "hostile",
    [
        member("../evil"),
        member("cifar-100-python/../../evil"),
        member("/evil"),
        member("cifar-100-python/train", tarfile.SYMTYPE, "../../evil"),
        member("cifar-100-python/train", tarfile.LNKTYPE, "../../evil"),
        member("cifar-100-python", tarfile.SYMTYPE, ".."),
        member("cifar-100-python/train", tarfile.CHRTYPE),
        member("cifar-100-python/train", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type.decode()}",
)
def test_an_archive_with_an_unsafe_member_is_refused(
    hostile: tarfile.TarInfo, server: Server, tmp_path: Path
) -> None:
    server.body = archive(hostile)
    with pytest.raises(InputError, match=f"holds unsafe '{hostile.name}'; use the official one"):
        get(server, tmp_path / "data")
    assert names(tmp_path) == ["data"]
    assert names(tmp_path / "data") == []


def test_an_archive_that_lacks_a_file_changes_nothing(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"another copy")
    server.body = archive(without=("meta",))
    with pytest.raises(InputError, match="holds no meta with the right MD5"):
        get(server, tmp_path)
    assert names(tmp_path) == ["cifar-100-python"]
    assert (tmp_path / "cifar-100-python" / "train").read_bytes() == b"another copy"


def test_only_the_files_asked_for_are_unpacked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract, unpacked = tarfile.TarFile.extract, []

    def recorded(tar: tarfile.TarFile, info: tarfile.TarInfo, *arguments: Any, **options: Any) -> None:
        unpacked.append((info.name, options["filter"]))
        extract(tar, info, *arguments, **options)

    monkeypatch.setattr(tarfile.TarFile, "extract", recorded)
    get(server, tmp_path, files={"test": FILES["test"]})
    assert unpacked == [("cifar-100-python/test", "data")]


def test_a_member_with_another_content_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no test with the right MD5"):
        get(server, tmp_path, files=FILES | {"test": "0" * 32})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "damage", [lambda raw: b"<html>", lambda raw: raw[:-2000], lambda raw: raw[:500] + raw]
)
def test_an_archive_that_is_none_is_refused(damage: Any, server: Server, tmp_path: Path) -> None:
    server.body = damage(server.body)
    with pytest.raises(InputError, match=f"{PART} (is damaged|holds no)"):
        get(server, tmp_path)
    assert names(tmp_path) == []


def test_a_full_disk_keeps_the_old_file_and_the_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"another copy")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        InputError, match=r"cannot be written \(No space left on device\); name another --data"
    ):
        get(server, tmp_path)
    assert names(tmp_path) == ["cifar-100-python", PART]
    assert (tmp_path / "cifar-100-python" / "train").read_bytes() == b"another copy"


def test_a_data_folder_that_is_a_file_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(InputError, match="data cannot be written .*; name another --data"):
        get(server, tmp_path / "data")
    with pytest.raises(InputError, match="cannot be written"):
        get(server, Path("a\0b"))


def test_a_pipe_in_the_place_of_a_file_is_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    os.mkfifo(tmp_path / "cifar-100-python" / "train")
    get(server, tmp_path)
    assert_fetched(tmp_path)
