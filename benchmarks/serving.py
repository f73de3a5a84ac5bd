"""`rbue serve` under load: real HTTP, broken requests, a kill in the middle; answers, latencies, memory.

    python benchmarks/serving.py [--requests 2000] [--more 10000] [--clients 32] [--samples 50] [--epochs 8]
        [--out results/serving.json] [--picture docs/images/serving-memory.svg]
    python benchmarks/serving.py --sizes

A small CNN is trained on digits and saved. `rbue serve` answers in a process of its own. 32 clients, threads of this
one, send 2,000 requests of mixed kinds and sizes: image files from 8x8 to 640x480 pixels, .npy files of one to eight
images, JSON arrays. Every tenth request is broken. Every good answer is compared with that of `rbue.predict` on the
images of that request alone. 10,000 more follow, for the memory. Then 2,000 again, while the server is killed (SIGKILL)
after half of them and started again; clients ask again until they have an answer. At last three servers, one a way of
batching, take turns. ``--sizes`` asks on what the last bits of an answer depend.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image
from torch import nn

import rbue
from rbue.files import read_json, write_json
from rbue.image_decoding import open_image, pixels_of
from rbue.lab import data, load_run
from rbue.lab.environment import facts
from rbue.lab.models import create
from rbue.lab.runs import RunConfig, RunFolder, train_run
from rbue.lab.training import recipe_for
from rbue.serving import Inputs

TOKEN = "a-token-for-measuring"
SEED = 11
ROUNDS = 7
EVERY = 10
"""Which requests are broken: one in so many."""


def network() -> nn.Module:
    """The network of the saved file, as `--model serving:network` makes it."""
    return create("small_cnn", 10, 1)


@dataclass(frozen=True)
class Ask:
    """A request, and what has to come back: probabilities ``(B, C)``, or one of some status codes."""

    kind: str
    build: Callable[[], dict[str, Any]]
    expected: np.ndarray | None = None
    codes: tuple[int, ...] = (200,)


@dataclass
class Seen:
    """What the clients saw; threads append to lists, which is safe."""

    latencies: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    codes: list[tuple[str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    retries: list[str] = field(default_factory=list)


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, kind)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def good(net: nn.Module, inputs: Inputs, samples: int) -> list[Ask]:
    """Requests of every kind, with what a direct `predict` says of each."""
    images = data.load("digits", "test").images
    random = np.random.default_rng(SEED)
    asks = []

    def add(kind: str, x: np.ndarray, build: Callable[[], dict[str, Any]]) -> None:
        asks.append(Ask(kind, build, rbue.predict(net, torch.tensor(x), samples=samples).probs.numpy()))

    for _ in range(20):
        chosen = images[random.integers(0, len(images), random.integers(1, 4))]
        files = [("file", (f"{k}.png", png(one))) for k, one in enumerate(chosen)]
        x = np.concatenate([inputs.of_pixels(one) for one in chosen])
        add(f"{len(chosen)} image files", x, lambda files=files: {"files": files})
    for width, height in ((32, 32), (100, 80), (640, 480)):
        for _ in range(5):
            one = images[random.integers(0, len(images))][..., 0]
            large = Image.fromarray(one).convert("RGB").resize((width, height))
            content = png(np.asarray(large), "JPEG")
            with open_image(io.BytesIO(content)) as opened:
                x = inputs.of_pixels(pixels_of(opened, *inputs.picture))
            add(f"a file of {width}x{height}", x, lambda content=content: {"files": {"file": ("a.jpg", content)}})
    for count in (1, 2, 3, 5, 8):
        for _ in range(3):
            x = random.standard_normal((count, 1, 8, 8)).astype(np.float32)
            body = {"content": npy(x), "headers": {"content-type": "application/octet-stream"}}
            add(f".npy of {count}", x, lambda body=body: body)
    for count in (1, 4):
        x = random.standard_normal((count, 1, 8, 8)).astype(np.float32)
        text = json.dumps({"images": x.tolist()}).encode()
        body = {"content": text, "headers": {"content-type": "application/json"}}
        add(f"JSON of {count}", x, lambda body=body: body)
    return asks


def broken() -> list[Ask]:
    """Requests that must be refused; each with what may come back."""
    small = np.full((8, 8, 1), 100, np.uint8)
    bomb = io.BytesIO()
    Image.new("L", (10_000, 10_000)).save(bomb, "PNG")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    rgba = np.concatenate([noise, noise[..., :1]], -1)
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + png(noise)
    multipart = {"content-type": "multipart/form-data; boundary=x"}

    def file(content: bytes) -> Callable[[], dict[str, Any]]:
        return lambda: {"files": {"file": ("a.png", content)}}

    def raw(content: bytes, **headers: str) -> Callable[[], dict[str, Any]]:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return lambda: {"content": content, "headers": named}

    binary = {"content_type": "application/octet-stream"}
    return [
        Ask("not an image", file(b"no image at all"), codes=(422,)),
        Ask("a bomb of 100 megapixels", file(bomb.getvalue()), codes=(422,)),
        Ask("an image with transparency", file(png(rgba)), codes=(422,)),
        Ask("a truncated image", file(png(noise)[:-200]), codes=(422,)),
        Ask("a truncated form", lambda: {"content": form[:2000], "headers": multipart}, codes=(400,)),
        Ask("an array of three channels", raw(npy(np.zeros((2, 3, 8, 8), np.float32)), **binary), codes=(422,)),
        Ask("an array with NaN", raw(npy(np.full((1, 1, 8, 8), np.nan, np.float32)), **binary), codes=(422,)),
        Ask("a truncated array", raw(npy(np.zeros((2, 1, 8, 8)))[:-100], **binary), codes=(422,)),
        Ask("JSON that is none", raw(b'{"images": [[', content_type="application/json"), codes=(400,)),
        Ask("too many bytes", raw(bytes(3_000_000), **binary), codes=(413,)),
        Ask("a wrong token", raw(png(small), content_type="image/png", authorization="Bearer wrong"), codes=(401,)),
        Ask("an unknown kind", raw(b"x", content_type="text/plain"), codes=(415,)),
    ]


class Server:
    """`rbue serve` as a process at one port, to be killed and started again; its memory is noted all the time."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [sys.executable, "-m", "rbue", "serve", *words, "--port", str(self.port)]
        self.memory: list[tuple[float, int, float]] = []  # time, process, megabytes
        self.process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self.start()
        self._watcher.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> float:
        """Start it, and give the seconds until it was ready."""
        log = (self.folder / "server.log").open("ab")
        root = Path(__file__).resolve().parents[1]
        path = os.pathsep.join([str(root / "src"), str(root / "benchmarks")])
        environment = {**os.environ, "PYTHONPATH": path, "RBUE_TOKEN": TOKEN}
        begin = time.monotonic()
        self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment, cwd=self.folder)
        while True:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            try:
                self.health = httpx.get(f"{self.address}/health", timeout=5).json()
                return time.monotonic() - begin
            except httpx.TransportError:
                time.sleep(0.1)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """End it by SIGTERM; gives its exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(60)
        self._over.set()
        self._watcher.join()
        return code

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            process = self.process
            try:
                text = Path(f"/proc/{process.pid}/status").read_text() if process else ""
            except OSError:
                continue
            if found := re.search(r"VmRSS:\s+(\d+) kB", text):
                self.memory.append((time.monotonic(), process.pid, int(found[1]) / 1024))


@contextmanager
def serving(folder: Path, *words: str) -> Any:
    server = Server(folder, words)
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.stop()


def one(client: httpx.Client, server: Server, ask: Ask, seen: Seen) -> None:
    """Send a request until it has an answer that is no fault of the server's absence, and look at that."""
    request = {"headers": {}, **ask.build()}
    request["headers"] = {"authorization": f"Bearer {TOKEN}", **request["headers"]}
    while True:
        start = time.monotonic()
        try:
            answer = client.post(f"{server.address}/predict", timeout=120, **request)
        except httpx.TransportError as error:
            seen.retries.append(type(error).__name__)
            time.sleep(0.2)
            continue
        if answer.status_code in (429, 503):
            seen.retries.append(str(answer.status_code))
            time.sleep(0.2)
            continue
        break
    seen.latencies.append(time.monotonic() - start)
    seen.answered.append(time.monotonic())
    seen.codes.append((ask.kind, answer.status_code))
    found = answer.json()
    if answer.status_code not in ask.codes or (ask.expected is None) != (list(found) == ["error"]):
        seen.wrong.append(f"{ask.kind}: {answer.status_code} {answer.text[:200]}")
    elif ask.expected is not None:
        probs = np.array([list(one["probabilities"].values()) for one in found["predictions"]], np.float32)
        seen.differences.append(float(np.abs(probs - ask.expected).max()))


def load(server: Server, asks: Sequence[Ask], clients: int, kill_after: int | None = None) -> tuple[Seen, dict]:
    """Let clients take requests from one list until it is empty."""
    seen, place, lock, event = Seen(), iter(asks), threading.Lock(), {}

    def work() -> None:
        with httpx.Client() as client:
            while True:
                with lock:
                    ask = next(place, None)
                if ask is None:
                    return
                one(client, server, ask, seen)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    if kill_after is not None:
        while len(seen.answered) < kill_after:
            time.sleep(0.02)
        killed = time.monotonic()
        server.kill()
        event = {"killed_after_requests": len(seen.answered), "seconds_to_start_again": round(server.start(), 1)}
        event["seconds_without_answers"] = killed
    for thread in threads:
        thread.join()
    if event:
        later = [moment for moment in seen.answered if moment > event["seconds_without_answers"] + 0.5]
        event["seconds_without_answers"] = round(min(later) - event["seconds_without_answers"], 1)
    return seen, {"seconds": round(time.monotonic() - begin, 2), **event}


def summary(seen: Seen, asks: Sequence[Ask], took: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a load."""
    right = [ask.kind for ask in asks if ask.expected is not None]
    times = [t for t, (kind, _) in zip(seen.latencies, seen.codes, strict=True) if kind in set(right)]
    differences = np.array(seen.differences)
    return {
        "requests": len(asks),
        "good": len(right),
        "broken": len(asks) - len(right),
        "answered": len(seen.codes),
        "good_with_the_bits_of_predict": int((differences == 0).sum()),
        "largest_difference": float(differences.max()),
        "wrong": seen.wrong[:20],
        "codes": dict(sorted(Counter(str(code) for _, code in seen.codes).items())),
        "codes_of_broken": {
            f"{kind}: {code}": count for (kind, code), count in sorted(Counter(seen.codes).items()) if code != 200
        },
        "retries": dict(Counter(seen.retries)),
        "p50_ms": round(1000 * float(np.quantile(times, 0.5)), 1),
        "p99_ms": round(1000 * float(np.quantile(times, 0.99)), 1),
        "requests_per_second": round(len(asks) / took["seconds"], 1),
        **took,
    }


def take_turns(folder: Path, words: Sequence[str], single: Sequence[Ask], clients: int) -> dict[str, Any]:
    """Requests of one image for three servers, one a way of batching: rounds of 96 from all clients, of 24 from one."""
    rounds: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        ways = ("auto", "padded", "off")
        servers = {way: stack.enter_context(serving(folder, *words, "--batching", way)) for way in ways}
        for _ in range(ROUNDS):
            for way, server in servers.items():
                mine = rounds.setdefault(way, {"requests_per_second": [], "one_client_p50_ms": []})
                many, took = load(server, [single[k % len(single)] for k in range(96)], clients)
                few, _ = load(server, [single[k % len(single)] for k in range(24)], 1)
                assert not many.wrong + few.wrong, many.wrong + few.wrong
                mine["requests_per_second"].append(96 / took["seconds"])
                mine["one_client_p50_ms"].append(1000 * float(np.median(few.latencies)))
                mine.setdefault("largest_difference", []).append(max(many.differences + few.differences))
    medians = {
        way: {
            "requests_per_second": round(float(np.median(mine["requests_per_second"])), 1),
            "one_client_p50_ms": round(float(np.median(mine["one_client_p50_ms"])), 1),
            "largest_difference": max(mine["largest_difference"]),
        }
        for way, mine in rounds.items()
    }
    return {"rounds": ROUNDS, **medians}


def memory_of(server: Server, seen: Seen) -> list[dict[str, Any]]:
    """Megabytes of each process by the number of requests answered so far."""
    answered = np.sort(seen.answered)
    rows = []
    for pid in dict.fromkeys(pid for _, pid, _ in server.memory):
        points = [(int(np.searchsorted(answered, t)), mb) for t, p, mb in server.memory if p == pid]
        kept: dict[int, float] = {}
        for done, mb in points:
            kept[done // 10 * 10] = max(kept.get(done // 10 * 10, 0), mb)
        rows.append({"megabytes_by_requests": [[done, round(mb, 1)] for done, mb in sorted(kept.items())]})
    return rows


def flatness(row: dict[str, Any]) -> dict[str, Any]:
    """The memory of a process after a tenth of its requests, at its end, and the slope in between."""
    done, mb = np.array(row["megabytes_by_requests"]).T
    late = done >= done.min() + 0.1 * (done.max() - done.min())
    slope = np.polyfit(done[late], mb[late], 1)[0] if late.sum() > 2 else float("nan")
    return {
        "after_a_tenth": float(mb[late][0]),
        "at_the_end": float(mb[-1]),
        "most": float(mb.max()),
        "kilobytes_a_request_after_a_tenth": round(1024 * float(slope), 2),
    }


def mixed(right: Sequence[Ask], wrong: Sequence[Ask], count: int) -> list[Ask]:
    random = np.random.default_rng(SEED)
    broken_order = [wrong[k % len(wrong)] for k in range(count // EVERY)]
    asks = [right[random.integers(0, len(right))] for _ in range(count - len(broken_order))] + broken_order
    return [asks[k] for k in random.permutation(len(asks))]


def sizes(images: int = 4, samples: int = 10) -> dict[str, Any]:
    """Whether the bits of a row depend on its place, on the other rows, and on the size of the batch.

    Random weights, the large networks half as wide as usual; the channels last too.
    """
    rows = {}
    for name, shape in (
        ("small_cnn", (1, 8, 8)),
        *((name, (3, 32, 32)) for name in ("resnet18", "vgg13", "densenet121")),
    ):
        for layout in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(SEED)
            net = create(name, 10, shape[0], 1.0 if name == "small_cnn" else 0.5).eval()
            x = torch.randn(images, *shape)
            rbue.convert(net, rbue.DropReLU(0.9), example=x)
            if layout is torch.channels_last:  # as the bytes of a run lie, (N, H, W, C)
                x = x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)

            def drawn(x: torch.Tensor, net: nn.Module = net) -> torch.Tensor:
                index = torch.zeros(len(x), dtype=torch.int64)
                return rbue.predict(net, x, samples=samples, index=index, return_samples=True).samples

            together, others = drawn(x), x.clone()
            others[1:] = torch.randn_like(others[1:])
            moved = drawn(x.roll(1, 0)).roll(-1, 1)
            alone = torch.cat([drawn(x[k : k + 1]) for k in range(images)], 1)
            rows[f"{name}, {str(layout).removeprefix('torch.')}"] = {
                "same_at_another_place": torch.equal(moved, together),
                "same_beside_others": torch.equal(drawn(others)[:, 0], together[:, 0]),
                "largest_difference_alone": float((alone - together).abs().max()),
            }
    return rows


def picture(found: dict[str, Any], out: Path) -> None:
    """Resident memory by requests answered, one line a process."""
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.fonttype": "none", "font.size": 10, "svg.hashsalt": "rbue"})
    figure, axis = pyplot.subplots(figsize=(6.4, 3.0))
    lines = [("one process", found["steady"]["memory"][0])]
    lines += zip(("until it is killed", "started again"), found["killed"]["memory"], strict=False)
    for label, row in lines:
        done, mb = np.array(row["megabytes_by_requests"]).T
        axis.plot(done, mb, label=label, lw=1.5)
    axis.set(
        xlabel="requests answered",
        ylabel="resident memory, MB",
        ylim=(0, 1.2 * max(found["steady"]["memory"][0]["most"], 1)),
    )
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--more", type=int, default=10_000, help="requests after those, for the memory alone")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("results/serving.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/serving-memory.svg"))
    parser.add_argument("--sizes", action="store_true", help="only compare sizes of batches, and add that to --out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.sizes:
        found = read_json(given.out, "run this without --sizes first")
        write_json(given.out, {**found, "sizes_of_batches": sizes()})
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config = RunConfig(method="mc-droprelu:0.9", recipe=recipe_for("digits", epochs=given.epochs))
        train_run(config, folder, torch.device("cpu"))
        run = load_run(RunFolder.of(config, folder).path, "cpu")
        rbue.save(run.networks[0], folder / "net.safetensors", classes=run.classes)
        inputs = Inputs((1, 8, 8), mean=run.mean, std=run.std)
        normal = ["--mean", ",".join(map(str, run.mean)), "--std", ",".join(map(str, run.std))]
        words = ["net.safetensors", "--model", "serving:network", "--samples", str(given.samples), *normal]
        words += ["--threads", "1", "--max-mb", "2", "--timeout", "120"]
        right, wrong = good(run.networks[0], inputs, given.samples), broken()
        found: dict[str, Any] = {
            "what": __doc__.splitlines()[0],
            "date": date.today().isoformat(),
            "network": "small_cnn on digits, mc-droprelu:0.9, saved by rbue.save",
            "samples": given.samples,
            "clients": given.clients,
            "trials": 1,
            "environment": facts(),
            "packages": {name: version(name) for name in ("fastapi", "starlette", "uvicorn", "pillow", "httpx")},
        }
        asks = mixed(right, wrong, given.requests)
        for name, kill_after in (("steady", None), ("killed", len(asks) // 2)):
            with serving(folder, *words) as server:
                found["batching"] = server.health["batching"]
                seen, took = load(server, asks, given.clients, kill_after)
                metrics = httpx.get(f"{server.address}/metrics", headers={"authorization": f"Bearer {TOKEN}"}).text
                calls = {
                    key: float(re.search(rf"^{key} (\S+)", metrics, re.M)[1])
                    for key in ("rbue_call_images_sum", "rbue_call_images_count")
                }
                found[name] = summary(seen, asks, took)
                if kill_after is None:  # what grows slowly shows only in many
                    more, _ = load(server, mixed(right, wrong, given.more), given.clients)
                    found[name]["wrong_in_more"] = len(more.wrong) + sum(one > 0 for one in more.differences)
                    seen.answered += more.answered
                found[name]["images_a_call"] = round(calls["rbue_call_images_sum"] / calls["rbue_call_images_count"], 2)
                found[name]["exit_code_after_sigterm"] = server.stop()
                found[name]["memory"] = [{**flatness(row), **row} for row in memory_of(server, seen)]
            print(name, json.dumps({key: value for key, value in found[name].items() if key != "memory"}, indent=1))
            print([flatness(row) for row in found[name]["memory"]], flush=True)
        single = [ask for ask in right if ask.expected is not None and len(ask.expected) == 1]
        found["batching_modes"] = take_turns(folder, words, single, given.clients)
        print(found["batching_modes"], flush=True)
    write_json(given.out, found)
    picture(found, given.picture)


if __name__ == "__main__":
    main()
