"""What a request brings: image files and arrays, read with limits and without trust."""

from __future__ import annotations

import io
import json
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import numpy as np
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from rbue.errors import InvalidInput
from rbue.image_decoding import open_image, pixels_of
from rbue.serving.engines import Inputs, Numbers

_NPY = b"\x93NUMPY"


class Refused(Exception):
    """A request that gets no prediction: a status code and one sentence."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


@dataclass(frozen=True)
class Upload:
    """One file of a request, or its body: a name for errors, and the bytes."""

    name: str
    content: bytes
    is_json: bool = False


@dataclass(frozen=True)
class Given:
    """Images of a request.

    Attributes:
        x: ``(B, ...)`` as the engine takes them.
        scaled_from: width and height of those that were scaled, by place.
    """

    x: Numbers
    scaled_from: dict[int, tuple[int, int]]


async def receive(request: Request, most_bytes: int, most_files: int) -> list[Upload]:
    """The files in a request's body, which is read no further than the limit.

    Raises:
        Refused: it is too large, no kind that is known, empty or cut off.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most_bytes:
        raise _too_large(most_bytes)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _parts(request, most_bytes, most_files)
    if kind not in ("application/json", "application/octet-stream") and not kind.startswith("image/"):
        raise Refused(
            415,
            f"the content type {kind[:60]!r} is not known; send files as multipart/form-data, one file as image/png "
            "or the like, or arrays as application/json.",
        )
    content = b"".join([chunk async for chunk in _limited(request, most_bytes)])
    return [Upload("the request", content, is_json=kind == "application/json")]


class _Ending:
    """Whether the last line of a form came by."""

    def __init__(self, boundary: bytes) -> None:
        self._mark, self._last, self.seen = b"\r\n--" + boundary + b"--", b"", False

    def watch(self, chunk: bytes) -> None:
        joined = self._last + chunk
        self.seen = self.seen or self._mark in joined
        self._last = joined[-len(self._mark) :]


async def _limited(request: Request, most_bytes: int, ending: _Ending | None = None) -> AsyncGenerator[bytes, None]:
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > most_bytes:
            raise _too_large(most_bytes)
        if ending is not None:
            ending.watch(chunk)
        yield chunk


def _too_large(most_bytes: int) -> Refused:
    return Refused(413, f"the request has more than {most_bytes:,} bytes; send fewer or smaller images.")


async def _parts(request: Request, most_bytes: int, most_files: int) -> list[Upload]:
    ending = _Ending(parse_options_header(request.headers["content-type"])[1].get(b"boundary", b""))
    parser = MultiPartParser(request.headers, _limited(request, most_bytes, ending), max_files=most_files, max_fields=0)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many" in error.message:
            raise Refused(
                413, f"the form has more than {most_files} files, or other fields; send only files."
            ) from None
        raise Refused(
            400, f"the form cannot be read ({error.message.rstrip('.')}); send files by -F file=@NAME."
        ) from None
    try:
        files = [one for _, one in form.multi_items() if isinstance(one, UploadFile)]
        if not ending.seen:
            raise Refused(400, "the upload was cut off before its end; send it again.")
        return [Upload((one.filename or f"file {place}")[-80:], await one.read()) for place, one in enumerate(files)]
    finally:
        await form.close()


def read(uploads: list[Upload], inputs: Inputs, most_images: int, most_pixels: int) -> Given:
    """The images in files, in their order.

    Raises:
        Refused: there are none, or too many.
        InvalidInput: what is wrong with one of them.
    """
    parts: list[Numbers] = []
    scaled: dict[int, tuple[int, int]] = {}
    for upload in uploads:
        place = sum(map(len, parts))
        if upload.content.startswith(_NPY):
            part = inputs.of_array(_npy(upload), upload.name)
        elif upload.is_json:
            part = inputs.of_array(_json(upload.content), "images")
        else:
            part, size = _image(upload, inputs, most_pixels)
            if size is not None:
                scaled[place] = size
        if place + len(part) > most_images:
            raise Refused(413, f"the request has more than {most_images} images; send fewer at once.")
        parts.append(part)
    if not parts:
        raise Refused(400, "the request holds no image; send one by -F file=@NAME, or arrays as JSON.")
    return Given(np.concatenate(parts), scaled)


def _image(upload: Upload, inputs: Inputs, most_pixels: int) -> tuple[Numbers, tuple[int, int] | None]:
    if not inputs.takes_images:
        raise InvalidInput(
            f"{upload.name} is no array; this server takes arrays alone, because it was started without --mean and "
            "--std."
        )
    mode, size = inputs.picture
    if not upload.content:
        raise InvalidInput(f"{upload.name} is empty; send an image.")
    with open_image(io.BytesIO(upload.content), upload.name, most_pixels) as image:
        found = image.size
        pixels = pixels_of(image, mode, None if found == size else size)
    return inputs.of_pixels(pixels), None if found == size else found


def _npy(upload: Upload) -> Numbers:
    """The array in a .npy file, whose header must not promise more than there is."""
    file = io.BytesIO(upload.content)
    try:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, by_columns, dtype = header[version](file)
    except Exception as error:  # whatever NumPy makes of damaged bytes
        raise InvalidInput(f"{upload.name} is no .npy file that can be read ({type(error).__name__}).") from error
    content = upload.content[file.tell() :]
    if dtype.kind not in "uif":
        raise InvalidInput(f"{upload.name} holds {dtype}, not numbers.")
    if min(shape, default=0) < 0 or len(content) != math.prod(shape) * dtype.itemsize:
        raise InvalidInput(
            f"{upload.name} holds {len(content)} bytes for {shape} of {dtype}; it is damaged or cut off."
        )
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")


def _json(content: bytes) -> Numbers:
    try:
        given: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        why = "too deep" if isinstance(error, RecursionError) else str(error)
        raise Refused(400, f"the JSON text cannot be read ({why[:100]}).") from error
    if not isinstance(given, dict) or list(given) != ["images"] or not isinstance(given["images"], list):
        raise Refused(400, 'the JSON text has to be {"images": [...]} with arrays of numbers in it.')
    if content.count(b'"') > 2:  # before NumPy gives every entry the room of the longest text
        raise InvalidInput("images holds text; give arrays of numbers.")
    try:
        return np.asarray(given["images"])
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidInput("images is no array of numbers; its rows may be of different lengths.") from error
