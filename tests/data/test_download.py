"""Downloads from a server in this process, which may cut them short."""

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from rheobase.data import download as module
from rheobase.data.download import download

CONTENT = bytes(range(256)) * 40
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    cut: int | None = None
    """Bytes after which it hangs up."""
    silent = False
    ranges = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        self.over = Event()
        self.url = f"http://127.0.0.1:{self.server_port}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.server.silent:
            self.server.over.wait(20)
            return
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if first >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(CONTENT) - first))
        self.end_headers()
        self.wfile.write(CONTENT[first : self.server.cut])

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.over.set()
        found.shutdown()
        thread.join()


def test_a_file_comes_whole(server: Server, tmp_path: Path) -> None:
    download(server.url, tmp_path / "new" / "a", MD5)
    assert (tmp_path / "new" / "a").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a"]


@pytest.mark.parametrize("ranges", [True, False])
def test_what_was_cut_short_goes_on(server: Server, tmp_path: Path, ranges: bool) -> None:
    server.cut, server.ranges = 1000, ranges
    with pytest.raises(
        OSError, match=rf"^could not download {server.url}: the connection ended after 1000 of 10240 bytes; try again"
    ):
        download(server.url, tmp_path / "a", MD5)
    assert not (tmp_path / "a").exists()
    server.cut = None
    download(server.url, tmp_path / "a", MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000-"]


def test_one_that_ended_before_it_was_renamed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(CONTENT)
    download(server.url, tmp_path / "a", MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_other_content_is_not_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"something else")
    with pytest.raises(ValueError, match="its checksum differs; try again"):
        download(server.url, tmp_path / "a", MD5)
    assert not list(tmp_path.iterdir())


def test_a_server_that_says_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.silent = True
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    with pytest.raises(OSError, match=r"could not download .*: timed out; try again"):
        download(server.url, tmp_path / "a", MD5)


def test_no_server(tmp_path: Path) -> None:
    with Server() as gone:
        url = gone.url
    with pytest.raises(OSError, match=r"could not download .*refused"):
        download(url, tmp_path / "a", MD5)
