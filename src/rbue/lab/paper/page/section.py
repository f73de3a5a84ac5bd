"""One experiment as a section of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rbue.errors import RbueError
from rbue.lab.paper.definitions import Drawing
from rbue.lab.paper.gathering import ExperimentData
from rbue.lab.paper.page import comparisons, pictures
from rbue.lab.paper.page.shown import Shown
from rbue.lab.paper.settings import QUICK
from rbue.lab.report.page import Block, Bullets, Notice, Section, Text

Draw = Callable[[Shown, Drawing], list[Block]]
FROM_RUNS: Mapping[str, Draw] = MappingProxyType(
    {
        "table": comparisons.tables,
        "boxes": comparisons.boxes,
        "medians": comparisons.medians,
        "heat-maps": comparisons.heat_maps,
        "plane": comparisons.plane,
    }
)
FROM_ILLUSTRATIONS: Mapping[str, Draw] = MappingProxyType(
    {
        "curves": pictures.curves,
        "network": pictures.network,
        "framework": pictures.framework,
        "images": pictures.images,
        "variance": pictures.variance,
    }
)
QUICK_TITLE = "Quick run: these numbers are no evidence about the paper"
FEW = 4


def experiment_section(shown: Shown) -> Section:
    """The section, whose name is the experiment's id; it says what is missing and how the paper is read."""
    experiment, gathered = shown.experiment, shown.gathered
    words = shown.settings_words()
    lead = f"{experiment.place} of the paper, `{experiment.id}`."
    if words:
        lead += f" {'Measured with' if shown.is_measured else 'To be measured with'} {words}"
    blocks: list[Block] = [Text(lead)]
    if shown.quick and shown.is_measured:
        blocks.append(Notice(QUICK_TITLE))
    if gathered.missing:
        blocks.append(_missing_notice(gathered))
    if experiment.notes:
        blocks += [Text("How the paper is read here:"), Bullets(experiment.notes)]
    for drawing in experiment.drawings:
        blocks += _drawn(shown, drawing)
    return Section(f"{experiment.place}: {experiment.title}", blocks, experiment.id, experiment.place)


def missing_sentence(gathered: ExperimentData) -> str:
    """What one experiment lacks, in a line."""
    name, missing = gathered.experiment.id, gathered.missing
    if not gathered.has_something:
        return f"`{name}`: nothing has been measured yet."
    more = f" and {len(missing) - FEW} more" if len(missing) > FEW else ""
    return f"`{name}`: {len(missing)} missing: {'; '.join(missing[:FEW])}{more}."


def how_to_run(gathered: ExperimentData) -> str:
    """The command that does what is missing."""
    grid, models = gathered.experiment.grid, dict.fromkeys(row.model for row in gathered.rows)
    only = f" --models {','.join(models)}" if grid is not None and models and tuple(models) != grid.models else ""
    quick = " --quick" if gathered.scale == QUICK.name else ""
    return f"`rbue paper run {gathered.experiment.id}{only}{quick}{gathered.options}`"


def _missing_notice(gathered: ExperimentData) -> Notice:
    if not gathered.has_something:
        return Notice("Nothing of this has been measured yet", [f"{how_to_run(gathered)} does it."])
    return Notice(
        "This is not complete", [f"Missing: {'; '.join(gathered.missing)}.", f"{how_to_run(gathered)} continues."]
    )


def _drawn(shown: Shown, drawing: Drawing) -> list[Block]:
    if drawing.kind in FROM_ILLUSTRATIONS:
        if shown.gathered.illustration is None:
            return []
        draw = FROM_ILLUSTRATIONS[drawing.kind]
    else:
        draw = FROM_RUNS[drawing.kind]
    try:
        return draw(shown, drawing)
    except RbueError as error:
        return [Notice("This could not be drawn", [str(error)])]
