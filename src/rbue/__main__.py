"""``python -m rbue`` is the command ``rbue``."""

import sys
from collections.abc import Callable
from contextlib import suppress

from rbue._version import __version__
from rbue.errors import needing


def main() -> None:
    """The entry point of the command, which needs the laboratory."""
    if sys.argv[1:] == ["--version"]:  # without loading torch
        with suppress(OSError):  # which the command puts into words
            print(__version__, flush=True)
            return
    try:
        _command()()
    except KeyboardInterrupt:  # while torch is loaded; a verb says itself that it was stopped
        print("rbue: stopped.", file=sys.stderr)
        sys.exit(130)


def _command() -> Callable[[], None]:
    try:
        with needing("lab", "the command"):
            from rbue.lab.cli import main
    except ModuleNotFoundError as error:
        sys.exit(f"rbue: {error}")
    return main


if __name__ == "__main__":
    main()
