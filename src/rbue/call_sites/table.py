"""The ReLU call sites of a network as a table, and the choice among them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Union, overload

from rbue.errors import InvalidInput


@dataclass(frozen=True)
class Site:
    """One application of ReLU: the ``call``-th one inside the module at ``path``."""

    index: int
    path: str
    call: int
    form: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """``path`` for a module's first ReLU, ``path[1]`` for its second, and so on."""
        return site_name(self.path, self.call)

    @property
    def number(self) -> int:
        """The site's number in the random stream; it depends on the name alone."""
        return site_number(path_word(self.path), self.call)


def site_name(path: str, call: int) -> str:
    """What people call a site."""
    return f"{path or '(root)'}[{call}]" if call else path or "(root)"


def path_word(path: str) -> int:
    """A 32-bit word for a module path."""
    return zlib.crc32(path.encode())


def site_number(word: int, call: int) -> int:
    """The stream's site number for the ``call``-th ReLU inside the module with this path word."""
    return (word + call * 0x9E3779B9) & 0xFFFFFFFF


class SiteTable(Sequence[Site]):
    """The call sites of a network in the order they run. Iterate over it, index it, or print it."""

    def __init__(self, sites: Iterable[Site]) -> None:
        self._sites = tuple(sites)

    def __len__(self) -> int:
        return len(self._sites)

    @overload
    def __getitem__(self, index: int) -> Site: ...
    @overload
    def __getitem__(self, index: slice) -> SiteTable: ...
    def __getitem__(self, index: int | slice) -> Site | SiteTable:
        found = self._sites[index]
        return SiteTable(found) if isinstance(found, tuple) else found

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SiteTable) and self._sites == other._sites

    def __hash__(self) -> int:
        return hash(self._sites)

    def __repr__(self) -> str:
        rows = [("index", "site", "form", "shape")]
        rows += [(str(s.index), s.name, s.form, "x".join(map(str, s.shape))) for s in self]
        return "\n".join(in_columns(rows))


def in_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a table, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


Placement = Union[str, int, Sequence[Union[str, int]], Callable[[Site], bool]]  # noqa: UP007 (shown in documentation)


def choose(sites: SiteTable, where: Placement, noun: str = "ReLU") -> frozenset[tuple[str, int]]:
    """The (path, call) pairs that a placement picks.

    Args:
        sites: what there is to choose from.
        where: ``"all"``, ``"first"``, ``"last"``, ``"last block"`` (the smallest module around the last site that has
            several, or else the last quarter of them), an index (negative ones count from the end), a name such as
            ``"layer4.0.relu[1]"``, a pattern such as ``"layer4.*"``, a list of these, or a function of a
            :class:`Site`. A module's path picks every call of that module, not those of the modules inside
            it; ``"relu[0]"`` picks the first call alone.
        noun: what a site is called in an error.
    """
    if callable(where):
        picked = [site for site in sites if where(site)]
    elif isinstance(where, (str, Integral)):
        picked = _by_one(sites, where, noun)
    elif isinstance(where, Iterable):
        picked = [site for one in where for site in _by_one(sites, one, noun)]
    else:
        raise InvalidInput(
            "where must be 'all', 'first', 'last', an index, a name or pattern, a list of these, or a function, "
            f"not {where!r}."
        )
    if not picked:
        raise _picks_none(sites, where, noun)
    return frozenset((site.path, site.call) for site in picked)


def _by_one(sites: SiteTable, one: str | int, noun: str) -> list[Site]:
    """What one index, name or pattern picks: in a list, each has to pick something."""
    if not isinstance(one, str):
        return [_by_index(sites, one)]
    found = _by_word(sites, one)
    if not found:
        raise _picks_none(sites, one, noun)
    return found


def _picks_none(sites: SiteTable, where: Placement, noun: str) -> InvalidInput:
    inside = isinstance(where, str) and any(site.path.startswith(f"{where}.") for site in sites)
    hint = f" (inside it: where={f'{where}.*'!r})" if inside else ""
    error = InvalidInput(
        f"where={where!r} picks none of the {len(sites)} {noun} call sites{hint}; rbue.sites lists them."
    )
    error.add_note(repr(sites))  # Python shows it below; the command says its sentence
    return error


def _by_word(sites: SiteTable, word: str) -> list[Site]:
    if word == "all":
        return list(sites)
    if word == "first":
        return [sites[0]]
    if word == "last":
        return [sites[-1]]
    if word == "last block":
        return last_block(sites)
    # A name goes before a pattern, in which the brackets of "relu[1]" would stand for the one character 1.
    # The first call has a name without a number, which is its module's path too; with "[0]" it is picked alone.
    named = [site for site in sites if word == (site.name if site.call else f"{site.name}[0]")]
    return named or [site for site in sites if fnmatchcase(site.name, word) or fnmatchcase(site.path, word)]


def last_block(sites: SiteTable) -> list[Site]:
    """The sites in the smallest module around the last one that has several, but not all; else the last quarter."""
    parts = sites[-1].path.split(".")
    for length in range(len(parts), 0, -1):
        path = ".".join(parts[:length])
        inside = [site for site in sites if site.path == path or site.path.startswith(f"{path}.")]
        if 1 < len(inside) <= len(sites) / 2:
            return inside
    return list(sites[-max(1, len(sites) // 4) :])


def _by_index(sites: SiteTable, index: int) -> Site:
    if isinstance(index, bool) or not isinstance(index, Integral):
        raise InvalidInput(f"a site index must be an integer, and a name a text, not {index!r}.")
    if not -len(sites) <= index < len(sites):
        raise InvalidInput(f"there is no site {index}: the network has {len(sites)} (0 to {len(sites) - 1}).")
    return sites[index]
