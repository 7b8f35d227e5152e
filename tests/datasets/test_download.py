"""Downloads from a server on the loopback: what agrees with its checksum arrives, nothing else leaves a trace."""

import gzip
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from sordina.datasets.data import CHUNK, File, download, obtain
from sordina.errors import DataNotFound

CONTENT = np.random.default_rng(0).bytes(3 * CHUNK + 17)


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def server():
    served = {
        "/good": CONTENT,
        "/bad": b"something else",
        "/light.gz": gzip.compress(CONTENT, 1, mtime=1),
        "/strong.gz": gzip.compress(CONTENT, 9, mtime=2),
        "/torn.gz": gzip.compress(CONTENT)[:-20],
    }
    hits = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hits.append(self.path)
            if self.path == "/short":
                self.send_response(200)
                self.send_header("Content-Length", str(len(CONTENT)))
                self.end_headers()
                self.wfile.write(CONTENT[:1000])
                return
            content = served.get(self.path)
            self.send_response(200 if content else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.url, server.hits = f"http://127.0.0.1:{server.server_port}", hits
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_arrives_whole_and_tells_its_progress(server, tmp_path):
    seen = []
    file = File("set/file.bin", sha256(CONTENT), (f"{server.url}/good",))
    path = download(file, tmp_path, progress=lambda name: lambda *step: seen.append((name, *step)))
    assert path == tmp_path / "set" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("page", ["/bad", "/short", "/absent", "/torn.gz"])
def test_what_does_not_agree_is_refused_and_leaves_nothing(server, tmp_path, page):
    file = File("set/file.gz", sha256(CONTENT), (server.url + page,), decompressed=page.endswith(".gz"))
    with pytest.raises(DataNotFound, match=r"the download failed \(http://127") as refusal:
        download(file, tmp_path)
    assert "\n" not in str(refusal.value)
    assert list((tmp_path / "set").iterdir()) == []


def test_the_next_mirror_is_tried(server, tmp_path):
    urls = tuple(server.url + page for page in ("/absent", "/bad", "/short", "/good"))
    assert download(File("file.bin", sha256(CONTENT), urls), tmp_path).read_bytes() == CONTENT
    assert server.hits == ["/absent", "/bad", "/short", "/good"]


@pytest.mark.parametrize("page", ["/light.gz", "/strong.gz"])
def test_mirrors_may_compress_differently(server, tmp_path, page):
    file = File("file.gz", sha256(CONTENT), (server.url + page,), decompressed=True)
    assert gzip.decompress(download(file, tmp_path).read_bytes()) == CONTENT


def test_nothing_that_is_there_is_fetched_again(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SORDINA_DATA", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    file = File("file.bin", sha256(CONTENT), (f"{server.url}/good",))
    assert obtain(file) == obtain(file) == tmp_path / "sordina" / "data" / "file.bin"
    assert server.hits == ["/good"]


def test_two_at_once_both_end_with_the_whole_file(server, tmp_path):
    file = File("file.bin", sha256(CONTENT), (f"{server.url}/good",))
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: download(file, tmp_path), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_offline_is_one_sentence(server, tmp_path):
    closed = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    closed.server_close()
    file = File("file.bin", sha256(CONTENT), (f"http://127.0.0.1:{closed.server_port}/good",))
    with pytest.raises(DataNotFound, match=r"the download failed .*refused.*set SORDINA_DATA") as refusal:
        download(file, tmp_path)
    assert "\n" not in str(refusal.value)
