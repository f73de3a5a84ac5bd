"""What clients are told: answers, and one sentence for everything that cannot be answered."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest
from made_up_engine import POISON, MadeUp
from PIL import Image
from starlette.requests import Request
from starlette.testclient import TestClient

from rbue.errors import InvalidInput
from rbue.serving import Conformal, Inputs, Settings, create_app
from rbue.serving.process import bound
from rbue.serving.uploads import Refused, Upload, read, receive

TOKEN = "a-token-of-tests"


def opened(engine=None, **settings):
    app = create_app(engine or MadeUp(), Settings(**{"max_wait": 0, **settings}))
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def client():
    """Makes clients of servers that end with the test."""
    with ExitStack() as servers:
        yield lambda *given, **settings: servers.enter_context(opened(*given, **settings))


@pytest.fixture(scope="module")
def strict():
    """A client of a server with low limits."""
    with opened(max_images=3, max_bytes=60_000, max_samples=100, max_pixels=1_000_000) as client:
        yield client


def picture(size=(4, 4), mode="L", value=7, kind="PNG"):
    file = io.BytesIO()
    Image.new(mode, size, value).save(file, kind)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def files(*contents):
    return [("file", (f"image{k}.png", content)) for k, content in enumerate(contents)]


def test_images_and_arrays_say_the_same(client):
    here = client(conformal=Conformal(0.6, 0.9, 100))
    sent = here.post("/predict", files=files(picture(), picture(value=9))).json()
    pixels = np.stack([np.full((4, 4, 1), value, np.uint8) for value in (7, 9)])
    assert here.post("/predict", json={"images": pixels.tolist()}).json() == sent
    raw = {"content": npy(pixels.astype(float)), "headers": {"content-type": "application/octet-stream"}}
    assert here.post("/predict", **raw).json() == sent
    one = here.post("/predict", content=picture(), headers={"content-type": "image/png"}).json()
    assert one["predictions"] == sent["predictions"][:1]
    first, second = sent["predictions"]
    assert first["label"] == "cat"
    assert first["set"] == ["cat"]
    assert second["confidence"] > first["confidence"] + 0.01  # it counts as image 1
    assert list(first["probabilities"]) == list(MadeUp.classes)
    assert (sent["coverage"], sent["seed"], sent["depends_on_time"]) == (0.9, 0, False)
    assert "scaled_from" not in first


def test_an_image_of_another_size_is_scaled_and_that_is_said(client):
    sent = client().post("/predict", files=files(picture((40, 30), "RGB", (7, 7, 7), "JPEG"))).json()
    assert sent["predictions"][0]["scaled_from"] == [40, 30]


def test_a_request_chooses_its_samples(client):
    engine = MadeUp()
    here = client(engine)
    sent = here.post("/predict?samples=6&seed=5&spread=2", files=files(picture())).json()
    spread = sent["predictions"][0]["spread"]
    assert list(spread) == ["cat", "<b>dog</b>"]
    assert len(spread["cat"]) == 6
    assert engine.calls[-1][2].samples == 6
    assert engine.calls[-1][2].seed == 5
    before = time.monotonic()
    sent = here.post("/predict?budget_ms=900&tolerance=0.1", files=files(picture())).json()
    assert sent["depends_on_time"]
    assert engine.calls[-1][2].tolerance == 0.1
    assert before < engine.calls[-1][2].deadline - 0.9 < time.monotonic()


def test_the_usual_samples_may_be_asked_for_whatever_the_limit(client):
    ask = client(max_samples=3).post
    for samples, status in ((4, 200), (5, 422)):  # 4 are drawn for a request that does not say
        answer = ask("/predict", params={"samples": samples}, files=files(picture()))
        assert answer.status_code == status
    assert "at most 4" in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"GIF? no", "not an image"),
        (b"", "empty"),
        (picture((300, 300))[:60], "not an image"),
        (picture((300, 300), mode="RGB", value=(1, 2, 3))[:-40], "not an image"),
        (picture((1000, 1001)), "more pixels than the 1,000,000"),
        (picture(mode="RGBA", value=(1, 2, 3, 4)), "mode RGBA"),
        (npy(np.zeros((2, 4, 4, 3))), "shape (2, 4, 4, 3)"),
        (npy(np.zeros((0, 4, 4, 1))), "shape (0, 4, 4, 1)"),
        (npy(np.zeros(4)).replace(b"'<f8'", b"'2f8'"), "not numbers"),
        (npy(np.full((4, 4, 1), np.nan)), "NaN"),
        (npy(np.full((4, 4, 1), 0.5)), "no bytes"),
        (npy(np.full((4, 4, 1), 256)), "no bytes"),
        (npy(np.array(["x"])), "not numbers"),
        (npy(np.zeros((4, 4, 1)))[:-8], "cut off"),
        (npy(np.zeros((4, 4, 1))).replace(b"(4, 4, 1)", b"(9, 9, 9)"), "cut off"),
        (npy(np.zeros((4, 4, 1))).replace(b"(4, 4, 1)", b"(-4,-4,1)"), "cut off"),
        (npy(np.zeros(16, "S0")), "not numbers"),
        (b"\x93NUMPY\x09\x00", "npy"),
        (picture(value=POISON), "NaN or infinity"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(strict, content, says):
    answer = strict.post("/predict", files=files(content))
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]
    assert answer.json()["error"].endswith(".")


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ({"content": b"[" * 50_000, "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ({"json": {"image": []}}, 400, '{"images"'),
        ({"json": {"images": [[[[1]] * 4] * 4], "seed": 3}}, 400, '{"images"'),
        ({"json": {"images": [[1, 2], [3]]}}, 422, "different lengths"),
        ({"files": files(*[npy(np.zeros((2, 4, 4, 1)))] * 2)}, 413, "more than 3 images"),
        ({"json": {"images": ["a" * 20_000, *[""] * 5000]}}, 422, "holds text"),
        ({"json": {"images": []}}, 422, "shape (0,)"),
        ({"json": {"images": [[[[None]] * 4] * 4]}}, 422, "not numbers"),
        (
            {"content": b'{"images": [[[[NaN]]]]}', "headers": {"content-type": "application/json"}},
            422,
            "shape (1, 1, 1, 1)",
        ),
        ({"content": b"x=1", "headers": {"content-type": "text/plain"}}, 415, "text/plain"),
        ({"content": b"x=1"}, 415, "content type"),
        ({"data": {"a": "b"}, "files": files(picture())}, 413, "other fields"),
        ({"files": files(*[picture()] * 4)}, 413, "more than 3 files"),
        ({"content": npy(np.zeros((4, 4, 4, 1))), "headers": {"content-type": "image/x"}}, 413, "more than 3 images"),
        ({"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "cut off"),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": bytes(60_001), "headers": {"content-type": "image/png"}}, 413, "60,000 bytes"),
        ({"params": {"sample": 3}, "files": files(picture())}, 422, "did you mean 'samples'"),
        ({"params": {"seed": [3, 4]}, "files": files(picture())}, 422, "seed is given more than once"),
        ({"params": {"samples": "many"}, "files": files(picture())}, 422, "samples is 'many'"),
        ({"params": {"samples": 101}, "files": files(picture())}, 422, "at most 100"),
        ({"params": {"spread": 1, "budget_ms": 5}, "files": files(picture())}, 422, "spread needs"),
        ({"files": files(picture(value=251))}, 500, "its log says why"),
    ],
)
def test_other_requests_get_their_code_and_a_sentence(strict, request_, status, says):
    answer = strict.post("/predict", **request_)
    assert (answer.status_code, list(answer.json())) == (status, ["error"]), answer.text
    assert says in answer.json()["error"]
    assert "Traceback" not in answer.text
    assert "secret" not in answer.text


def test_a_fault_of_the_server_has_its_headers_and_is_counted(client):
    here = client()
    answer = here.post("/predict", files=files(picture(value=251)))
    assert answer.status_code == 500
    assert "content-security-policy" in answer.headers
    assert 'rbue_requests_total{code="500",path="/predict"} 1.0' in here.get("/metrics").text


def test_an_upload_without_a_length_is_stopped_at_the_limit():
    given = []

    async def chunk():
        given.append(1)
        return {"type": "http.request", "body": bytes(1000), "more_body": len(given) < 100}

    request = Request({"type": "http", "method": "POST", "headers": [(b"content-type", b"image/png")]}, chunk)
    with pytest.raises(Refused) as refusal:
        asyncio.run(receive(request, 5000, 3))
    assert refusal.value.status == 413
    assert len(given) == 6

    given.clear()
    request.scope["headers"].append((b"content-length", b"5001"))
    with pytest.raises(Refused):
        asyncio.run(receive(Request(request.scope, chunk), 5000, 3))
    assert not given


def test_the_end_of_a_form_may_come_in_pieces():
    end = b"\r\n--x--\r\n"
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + picture() + end
    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    for cut in range(len(body) - len(end), len(body)):
        pieces = [body[:cut], body[cut:]]

        async def chunk(pieces=pieces):
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        (upload,) = asyncio.run(receive(Request({"type": "http", "method": "POST", "headers": headers}, chunk), 999, 3))
        assert upload.content == picture()


def test_files_and_arrays_are_read_in_their_order_and_as_they_lie_in_memory():
    two = np.arange(48, dtype=np.uint8).reshape(2, 4, 6, 1)
    uploads = [Upload("a", npy(np.asfortranarray(two))), Upload("b", picture((40, 30))), Upload("c", picture((6, 4)))]
    given = read(uploads, Inputs((4, 6, 1), bytes=True), 4, 10_000)
    assert np.array_equal(given.x[:2], two)
    assert (given.x[2:] == 7).all()
    assert given.scaled_from == {2: (40, 30)}


def test_the_name_of_a_file_does_not_say_what_it_is(client):
    sent = [("file", ("the request", b'{"images": [[[[1]]]]}', "application/json"))]
    assert client().post("/predict", files=sent).status_code == 422


def test_a_form_may_spell_its_boundary_and_end_as_it_likes(client):
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + picture() + b"\r\n--x--\r\n"
    )
    kind = {"content-type": "multipart/form-data; Boundary=x"}
    answer = client().post("/predict", content=body + bytes(600), headers=kind)
    assert answer.status_code == 200, answer.text


def test_the_last_file_of_a_form_that_is_cut_off_is_not_left_out_silently(client):
    body = b""
    for content in (picture(), picture(value=9)):
        body += b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + content + b"\r\n"
    kind = {"content-type": "multipart/form-data; boundary=x"}
    here = client()
    assert len(here.post("/predict", content=body + b"--x--\r\n", headers=kind).json()["predictions"]) == 2
    answer = here.post("/predict", content=body[:-9], headers=kind)
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "the upload was cut off before its end; send it again.",
    )


def test_a_token_is_asked_for_and_never_shown(client, caplog):
    caplog.set_level(logging.DEBUG)
    here = client(token=TOKEN)
    for given in (None, "Bearer", "Bearer wrong-token", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer tökén"):
        headers = {} if given is None else {"authorization": given.encode()}
        answer = here.post("/predict", files=files(picture()), headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert here.get("/metrics", headers=headers).status_code == 401
    good = {"authorization": f"Bearer {TOKEN}"}
    assert here.post("/predict", files=files(picture()), headers=good).status_code == 200
    assert here.get("/metrics", headers=good).status_code == 200
    assert here.get("/health").json()["needs_token"]
    shown = (
        here.get("/health").text + here.get("/metrics", headers=good).text + repr(Settings(token=TOKEN)) + caplog.text
    )
    assert TOKEN not in shown


def test_the_way_around(client):
    here = client(conformal=Conformal(0.6, 0.9, 100))
    health = here.get("/health").json()
    assert (health["status"], health["model"], health["samples"]) == ("ok", "made up", 4)
    assert health["conformal"]["coverage"] == 0.9
    here.post("/predict", files=files(picture(), picture()))
    here.get("/a/secret/path")
    text = here.get("/metrics").text
    assert 'rbue_requests_total{code="200",path="/predict"} 1.0' in text
    assert 'rbue_requests_total{code="404",path="other"} 1.0' in text
    assert "rbue_samples_count 2.0" in text
    assert "rbue_call_images_sum 2.0" in text
    assert "process_resident_memory_bytes" in text
    schema = here.get("/openapi.json").json()
    assert set(schema["paths"]) == {"/predict", "/health", "/metrics"}
    post = schema["paths"]["/predict"]["post"]
    assert {"multipart/form-data", "application/json"} <= set(post["requestBody"]["content"])
    assert {one["name"] for one in post["parameters"]} == {"samples", "seed", "tolerance", "budget_ms", "spread"}
    assert {"200", "401", "429"} <= set(post["responses"])
    wrong = here.get("/predict")
    assert (wrong.status_code, wrong.json()["error"][:17]) == (405, "GET does not work")


def test_the_page_runs_nothing_that_is_not_its_own(client):
    here = client()
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        answer = here.get(path)
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, kind)
        assert "'unsafe-inline'" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "innerHTML" not in answer.text
    assert "style=" not in here.get("/").text


def test_numbers_as_the_network_takes_them(client):
    inputs = Inputs((3, 4, 4), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[..., 2] = 255
    assert inputs.of_pixels(pixels)[0, :, 0, 0].tolist() == [-2, -2, 2]
    here = client(MadeUp(Inputs((3, 4, 4))))
    assert (
        here.post("/predict", content=npy(np.zeros((3, 4, 4))), headers={"content-type": "image/x"}).status_code == 200
    )
    answer = here.post("/predict", files=files(picture()))
    assert "--mean and --std" in answer.json()["error"]
    large = {"images": [[[[1e300] * 4] * 4] * 3]}
    large = here.post("/predict", json=large)
    assert "too large for float32" in large.json()["error"]
    assert Inputs((3, 4, 6), mean=(0.5,), std=(0.5,)).picture == ("RGB", (6, 4))
    wrongs = [((0.5,), None), ((0.5,), (0.0,)), ((1.0,), (1.0, 1.0)), ((np.nan,), (1.0,)), ((0.0,), (np.inf,))]
    for wrong in ({"mean": mean, "std": std} for mean, std in wrongs):
        with pytest.raises(InvalidInput):
            Inputs((3, 4, 4), **wrong)


def test_classes_need_names_of_their_own():
    engine = MadeUp()
    engine.classes = ("cat", "dog", "cat")
    with pytest.raises(InvalidInput, match="two classes have one name"):
        create_app(engine)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"queue": 0}, "queue is 0"),
        ({"timeout": 0}, "timeout 0 and max_wait 0.005 must be numbers of seconds"),
        ({"timeout": "30"}, "timeout '30' and max_wait 0.005 must be numbers of seconds"),
        ({"max_wait": -1}, "max_wait -1 must be"),
        ({"batching": "never"}, "batching must be one of"),
        ({"seed": -1}, "seed is -1"),
        ({"token": "short"}, "the token must be a text of at least 8"),
        ({"token": 12345678}, "the token must be a text of at least 8"),
        ({"conformal": 0.9}, r"conformal is 0.9; give Conformal\(threshold, coverage, images\)"),
    ],
)
def test_settings_that_cannot_work(wrong, says):
    with pytest.raises(InvalidInput, match=says):
        Settings(**wrong)


def test_what_is_served_is_an_engine_with_settings():
    with pytest.raises(InvalidInput, match=r"engine is an object; give an engine, such as NetworkEngine\(net\)"):
        create_app(object())
    with pytest.raises(InvalidInput, match=r"settings is a dict; give Settings\(\.\.\.\)"):
        create_app(MadeUp(), {"queue": 3})


def test_an_address_is_taken_from_the_start():
    """Also before the network is ready, when nobody is answered yet."""
    with closing(bound("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"cannot listen at 127.0.0.1:{port} .*give another --host or --port"):
            bound("127.0.0.1", port).close()


@pytest.mark.parametrize("wrong", [70000, -1, "8000"])
def test_a_port_that_there_is_not(wrong):
    with pytest.raises(InvalidInput, match=f"port is {wrong!r}; give a whole number"):
        bound("127.0.0.1", wrong).close()
