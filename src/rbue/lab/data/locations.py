r"""Where data sets are looked for and where they are put.

A root is a folder with one folder for each set. Sets are looked for in

1. the root given by the caller (then nowhere else),
2. the folders of ``$RBUE_DATA``, separated like ``$PATH``,
3. ``./data``,
4. the user's cache: ``$XDG_CACHE_HOME/rbue/data`` or ``~/.cache/rbue/data`` (``~/Library/Caches/rbue/data`` on a
   Mac, ``%LOCALAPPDATA%\rbue\data`` on Windows).

New ones are put into the given root, else the first folder of ``$RBUE_DATA``, else the user's cache.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "RBUE_DATA"


def search_path(root: str | os.PathLike[str] | None = None) -> list[Path]:
    """The roots to look in, in order."""
    if root is not None:
        return [Path(root).expanduser()]
    return [*_from_environment(), Path("data"), user_cache()]


def target_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The root to write to."""
    if root is not None:
        return Path(root).expanduser()
    return next(iter(_from_environment()), user_cache())


def user_cache() -> Path:
    """The folder for this user's data sets."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rbue" / "data"


def _from_environment() -> list[Path]:
    return [Path(part).expanduser() for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part.strip()]
