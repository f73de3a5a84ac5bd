"""Write ``docs/api.md`` from the docstrings; ``--check`` only says whether it is up to date."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import rbue
from rbue import activations, integrations, lab, serving
from rbue.integrations import sklearn, transformers
from rbue.lab import data, methods, models

PAGE = Path(__file__).with_name("api.md")
SECTIONS: list[tuple[str, ModuleType, list[str]]] = [
    ("rbue", rbue, [name for name in rbue.__all__ if not isinstance(getattr(rbue, name), (ModuleType, str))]),
    ("rbue.activations", activations, ["Activation", "Randomness", "SiteCall"]),
    ("rbue.functional", rbue.functional, list(rbue.functional.__all__)),
    ("rbue.metrics", rbue.metrics, list(rbue.metrics.__all__)),
    ("rbue.calibration", rbue.calibration, list(rbue.calibration.__all__)),
    ("rbue.decisions.conformal", rbue.decisions.conformal, list(rbue.decisions.conformal.__all__)),
    ("rbue.decisions.abstaining", rbue.decisions.abstaining, list(rbue.decisions.abstaining.__all__)),
    (
        "rbue.decisions.out_of_distribution",
        rbue.decisions.out_of_distribution,
        list(rbue.decisions.out_of_distribution.__all__),
    ),
    ("rbue.decisions.acquiring", rbue.decisions.acquiring, list(rbue.decisions.acquiring.__all__)),
    ("rbue.integrations", integrations, list(integrations.__all__)),
    ("rbue.integrations.sklearn", sklearn, list(sklearn.__all__)),
    ("rbue.integrations.transformers", transformers, list(transformers.__all__)),
    ("rbue.variance", rbue.variance, list(rbue.variance.__all__)),
    ("rbue.serving", serving, list(serving.__all__)),
    ("rbue.lab", lab, list(lab.__all__)),
    ("rbue.lab.models", models, list(models.__all__)),
    ("rbue.lab.methods", methods, list(methods.__all__)),
    ("rbue.lab.data", data, list(data.__all__)),
]


def signature(value: Any) -> str:
    """The call signature with plain annotations, or nothing for a value that has none of its own."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    if inspect.isclass(value):
        found = found.replace(return_annotation=inspect.Signature.empty)
    # annotations are kept as strings by the modules; show them without their quotes
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(found))
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text)


def members(value: type) -> Iterator[str]:
    """The public methods and properties that a class defines itself, one line each."""
    for name, member in vars(value).items():
        inner = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_") or not (callable(inner) or isinstance(member, property)):
            continue
        call = "" if isinstance(member, property) else signature(inner)
        yield f"- `{name}{call}`: {inspect.cleandoc(inner.__doc__ or '').splitlines()[0]}"


def lines() -> Iterator[str]:
    """The page, line by line."""
    yield "# API reference\n\nWritten from the docstrings by `python docs/build_api.py`; edit those instead.\n"
    for title, module, names in SECTIONS:
        yield f"## `{title}`\n"
        if title != "rbue":
            yield inspect.cleandoc(module.__doc__ or "").splitlines()[0] + "\n"
        for name in names:
            value = getattr(module, name)
            own = "" if inspect.isclass(value) and issubclass(value, Exception) else signature(value)
            yield f"### `{title}.{name}`\n\n```\n{name}{own}\n```\n"
            yield "```text\n" + inspect.cleandoc(value.__doc__ or "") + "\n```\n"
            if inspect.isclass(value) and (listed := list(members(value))):
                yield "\n".join(listed) + "\n"


def main() -> int:
    """Write or check the page."""
    text = "\n".join(lines())
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
