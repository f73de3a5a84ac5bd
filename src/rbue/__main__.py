"""``python -m rbue`` is the command ``rbue``."""

from rbue.cli import main

if __name__ == "__main__":
    main()
