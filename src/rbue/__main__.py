"""``python -m rbue`` is the command ``rbue``."""

import sys

from rbue._version import __version__


def main() -> None:
    """The entry point of the command, which needs the laboratory."""
    if sys.argv[1:] == ["--version"]:  # without loading torch
        print(__version__)
        return
    try:
        from rbue.lab.cli import main as command
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rbue"):
            raise
        sys.exit(f"rbue: the command needs the package {error.name}; run pip install 'rbue[lab]'.")
    command()


if __name__ == "__main__":
    main()
