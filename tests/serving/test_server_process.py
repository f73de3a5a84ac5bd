"""The server as others meet it: a process, a browser, an ONNX file without torch."""

from __future__ import annotations

import base64
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import uvicorn
from made_up_engine import MadeUp
from PIL import Image
from torch import nn

import rbue
from browsing import CONTRAST, chromium_or_skip, show
from rbue import lab
from rbue.lab import data
from rbue.lab.runs import RunConfig, RunFolder, train_run
from rbue.lab.training import recipe_for
from rbue.serving import Conformal, OnnxEngine, Sampling, Settings, create_app

pytestmark = pytest.mark.slow
SOURCE = str(Path(rbue.__file__).parents[1])


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    recipe = recipe_for("digits", epochs=1, batch=128)
    config = RunConfig(method="mc-droprelu:0.8", width=0.25, holdout=100, recipe=recipe)
    train_run(config, root, torch.device("cpu"))
    return RunFolder.of(config, root).path


@pytest.fixture
def started(tmp_path):
    """Starts ``rbue serve`` and gives the process and its address."""
    processes = []

    def start(*words):
        log = (tmp_path / f"log{len(processes)}").open("w+")
        path = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "rbue", "serve", *map(str, words), "--port", "0", "--device", "cpu"]
        processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
        for _ in range(1200):
            time.sleep(0.1)
            found = re.search(r"ready at (\S+)", Path(log.name).read_text())
            if found:
                return processes[-1], found[1], Path(log.name)
            assert processes[-1].poll() is None, Path(log.name).read_text()
        raise AssertionError(Path(log.name).read_text())

    yield start
    for process in processes:
        process.kill()
        process.wait()


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0]).save(file, "PNG")
    return file.getvalue()


def test_a_process_answers_as_predict_does_and_ends_when_all_are_answered(run_folder, started):
    images = data.load("digits", "test").images[:24]
    process, address, log = started(run_folder, "--conformal", "0.9", "--samples", 50, "--token", "secret-of-tests")
    run = lab.load_run(run_folder, "cpu")
    headers = {"authorization": "Bearer secret-of-tests"}

    def ask(start, count):
        sent = [("file", (f"{k}.png", png(images[k]))) for k in range(start, start + count)]
        return httpx.post(f"{address}/predict", files=sent, headers=headers, timeout=60)

    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(ask, 3 * k, 1 + k % 3) for k in range(8)]
        for k, answer in enumerate(asked):
            direct = run.predict(images[3 * k : 3 * k + 1 + k % 3], samples=50)
            found = answer.result().json()["predictions"]
            assert [one["confidence"] for one in found] == direct.confidence.tolist()
            assert [list(one["probabilities"].values()) for one in found] == direct.probs.tolist()
            assert all(one["label"] in one["set"] for one in found)
        waiting = [clients.submit(ask, 0, 3) for _ in range(8)]
        for _ in range(200):
            if "rbue_waiting 0.0" not in httpx.get(f"{address}/metrics", headers=headers).text:
                break
        process.send_signal(signal.SIGTERM)
        codes = [one.result().status_code for one in waiting if not isinstance(one.exception(), httpx.ConnectError)]
        assert set(codes) == {200}
    assert process.wait(30) == 0
    assert "Traceback" not in log.read_text()
    assert "secret-of-tests" not in log.read_text()


def test_a_killed_process_starts_again_at_the_same_answers(run_folder, started):
    image = png(data.load("digits", "test").images[0])
    replies = []
    for _ in range(2):
        process, address, _ = started(run_folder, "--samples", 20)
        replies.append(httpx.post(f"{address}/predict", files={"file": image}, timeout=60).json())
        process.kill()
        process.wait()
    assert replies[0] == replies[1]


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it fails from here on
import numpy as np
from starlette.testclient import TestClient
from rbue.serving import OnnxEngine, create_app
with TestClient(create_app(OnnxEngine("net.onnx"))) as client:
    for content in (open("x.npy", "rb").read(), open("one.npy", "rb").read()):
        print(client.post("/predict", content=content, headers={"content-type": "image/x"}).text)
    print(client.post("/predict?samples=3", content=content, headers={"content-type": "image/x"}).text)
"""


def test_an_exported_file_is_served_without_torch(tmp_path):
    import json

    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x = torch.randn(3, 1, 6, 6)
    rbue.convert(net, rbue.DropReLU(0.8), example=x)
    rbue.export(net, tmp_path / "net.onnx", x, samples=20, classes=["cat", "dog", "bird"])
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "one.npy", x.numpy()[:1])
    command = [sys.executable, "-c", WITHOUT_TORCH]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    out = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    together, alone, refused = (json.loads(line) for line in out.splitlines())
    direct = rbue.predict(net, x, samples=20)
    found = np.array([list(one["probabilities"].values()) for one in together["predictions"]])
    assert np.abs(found - direct.probs.numpy()).max() < 1e-6
    assert list(together["predictions"][0]["probabilities"]) == ["cat", "dog", "bird"]
    assert together["predictions"][:1] == alone["predictions"]
    assert "20 samples" in refused["error"]
    engine = OnnxEngine(tmp_path / "net.onnx")
    late = engine.predict(x.numpy(), np.arange(3), Sampling(20, seed=2**64 - 1)).probs
    assert np.abs(late - rbue.predict(net, x, samples=20, seed=2**64 - 1).probs.numpy()).max() < 1e-6
    with pytest.raises(rbue.InvalidInput, match="the network returned NaN or infinity"):
        engine.predict(np.full((1, 1, 6, 6), 3e38, np.float32), np.arange(1), Sampling(20))
    model = onnx.load(tmp_path / "net.onnx")
    (note,) = (one for one in model.metadata_props if one.key == "rbue")
    note.value = note.value.replace('"dog", "bird"', '"dog"')
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(rbue.InvalidInput, match="2 names for 3 classes"):
        OnnxEngine(tmp_path / "net.onnx")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = chromium_or_skip(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
def address():
    """Serves made-up answers from a thread of this process."""
    servers = []

    def start(**settings):
        config = uvicorn.Config(create_app(MadeUp(), Settings(**settings)), port=0, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.02)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(30)


DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
const carried = new DataTransfer();
carried.items.add(new File([bytes], "image.png", { type: "image/png" }));
document.getElementById("drop").dispatchEvent(new DragEvent("drop", { bubbles: true, dataTransfer: carried }));
"""


def until(page, script):
    """Wait for what a script returns."""
    end = time.monotonic() + 30
    while not (found := page.execute_script(script)):
        assert time.monotonic() < end, page.execute_script("return document.body.innerText")
        time.sleep(0.05)
    return found


ABOUT = "return document.getElementById('about').textContent.includes('classes')"
RESULT = "return !document.getElementById('result').hidden && document.getElementById('result').innerText"


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "light"), (1400, "dark"), (390, "dark")])
def test_an_image_is_dropped_and_the_answer_read(browser, address, width, scheme):
    page = show(browser, address(conformal=Conformal(0.95, 0.9, 100)), width, scheme)
    until(page, ABOUT)
    page.execute_script(DROP, base64.b64encode(png(np.full((4, 4, 1), 9, np.uint8))).decode())
    text = until(page, RESULT)
    assert text.startswith("cat")
    for words in ("sure.", "of 4 samples say so", "<b>dog</b>", "90\u00a0%", "One of these"):
        assert words in text
    dots = page.execute_script("return document.querySelectorAll('#spread .dot').length")
    assert dots == 3 * 4
    assert "cat from" in page.execute_script("return document.getElementById('spread').getAttribute('aria-label')")
    assert page.execute_script("return document.querySelectorAll('#set li').length") == 3
    assert page.execute_script("return document.querySelector('main b')") is None
    assert page.execute_script("return document.getElementById('picture').naturalWidth") == 4
    seen, poor = page.execute_script(CONTRAST)
    assert seen > 30
    assert poor == []
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.get_log("browser") == []


def test_by_keyboard_with_a_token_and_a_bad_file(browser, address, tmp_path):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    page = show(browser, address(token="secret-of-tests"))
    until(page, ABOUT)
    ActionChains(page).send_keys(Keys.TAB).send_keys("secret-of-tests").send_keys(Keys.TAB).perform()
    assert page.switch_to.active_element.get_attribute("id") == "file"
    outline = "return getComputedStyle(document.getElementById('drop')).outlineStyle"
    assert page.execute_script(outline) == "solid"
    (tmp_path / "bad.png").write_text("no image")
    page.find_element(By.ID, "file").send_keys(str(tmp_path / "bad.png"))
    error = (
        "return document.getElementById('status').className === 'error' && document.getElementById('status').innerText"
    )
    assert "bad.png is not an image" in until(page, error)
    assert [entry for entry in page.get_log("browser") if "422" not in entry["message"]] == []
    (tmp_path / "good.png").write_bytes(png(np.full((4, 4, 1), 9, np.uint8)))
    page.find_element(By.ID, "file").send_keys(str(tmp_path / "good.png"))
    text = until(page, RESULT)
    assert "--conformal 0.9" in text  # how to get a set where there is none
    assert page.switch_to.active_element.get_attribute("id") == "result"
    assert page.get_log("browser") == []
