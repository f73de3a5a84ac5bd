"""Run the Python blocks of the tutorials, in order, and show what they print and draw.

As an extension of Sphinx it does so at every build, and a block that raises fails the build. As a script it writes the
same into ``docs/tutorials`` and ``docs/images``, for those who read the files:

    python docs/executed_pages.py [trained-network] [text] ...
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_pictures import PICTURES, webp

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", flags=re.DOTALL)
"""A block of code, and what it prints if that is shown."""


def run(text: str, name: str) -> tuple[dict[str, Any], list[str]]:
    """The names that the blocks of a page define, run in order, and what each block printed."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    printed = []
    for block in BLOCK.finditer(text):
        lines_before = text.count("\n", 0, block.start(1))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile("\n" * lines_before + block[1], name, "exec"), names)  # an error names the line of the page
        printed.append("".join(f"{line.rstrip()}\n" for line in output.getvalue().splitlines()))
    return names, printed


def with_output(text: str, printed: list[str]) -> str:
    """The text of a page with what its blocks printed."""
    outputs = iter(printed)

    def filled(block: re.Match[str]) -> str:
        output = next(outputs)
        return f"```python\n{block[1]}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return BLOCK.sub(filled, text)


def executed(text: str, name: str) -> tuple[str, bytes]:
    """A tutorial as it came out now: its text, and its picture as the bytes of a WebP file."""
    names, printed = run(text, name)
    return with_output(text, printed), webp(PICTURES[name](names))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx: pages of ``tutorials/`` are executed as they are read."""
    from sphinx.errors import ExtensionError

    drawn: dict[str, bytes] = {}

    def read(app: Sphinx, page: str, source: list[str]) -> None:
        folder, _, name = page.rpartition("/")
        if folder == "tutorials" and name in PICTURES and app.config.run_tutorials:
            try:
                source[0], drawn[f"tutorial-{name}.webp"] = executed(source[0], name)
            except Exception as error:
                lines = [place.lineno for place in traceback.extract_tb(error.__traceback__) if place.filename == name]
                where = f"{page}.md, line {lines[0]}" if lines else f"the picture of {page}.md"
                raise ExtensionError(f"{where}: {type(error).__name__}: {error}") from error

    def replace_pictures(app: Sphinx, error: Exception | None) -> None:
        if error is None and app.builder.format == "html":
            for file, packed in drawn.items():  # over the copies of those that are kept beside the pages
                Path(app.outdir, "_images", file).write_bytes(packed)

    app.add_config_value("run_tutorials", True, "env", bool)  # -D run_tutorials=0 shows them as they were kept
    app.connect("source-read", read)
    app.connect("build-finished", replace_pictures)
    return {"parallel_read_safe": False, "parallel_write_safe": True}


def main() -> None:
    """Run pages, and write what they print and draw beside them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", nargs="*", help="the tutorials to run; all if none is named")
    for name in parser.parse_args().page or PICTURES:
        page = HERE / "tutorials" / f"{name}.md"
        text, picture = executed(page.read_text(encoding="utf-8"), name)
        page.write_text(text, encoding="utf-8")
        (HERE / "images" / f"tutorial-{name}.webp").write_bytes(picture)


if __name__ == "__main__":
    main()
