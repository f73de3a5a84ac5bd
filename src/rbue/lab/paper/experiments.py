"""Every table and figure of the paper as data: what to train, what to measure, what to draw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from rbue.errors import InvalidInput, did_you_mean

Measure = Literal["clean", "diversity", "shift"]


@dataclass(frozen=True)
class Grid:
    """What to train: every network with every method.

    Attributes:
        data: name of the data set.
        models: names of the networks.
        methods: short texts of the methods, in the order of the paper's rows.
        any_network: whether another network may stand for its own, if that is asked for.
    """

    data: str
    models: tuple[str, ...]
    methods: tuple[str, ...]
    any_network: bool = False


@dataclass(frozen=True)
class Drawing:
    """One thing to draw from an experiment's data.

    Attributes:
        kind: ``table``, ``boxes``, ``medians``, ``heat-maps``, ``plane``, ``curves``, ``network``, ``framework``,
            ``images`` or ``variance``.
        measures: the measurements it shows, by their names in the results.
        methods: the methods it shows; none means all of the grid.
        caption: what it shows, in one sentence.
    """

    kind: str
    measures: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    caption: str = ""


@dataclass(frozen=True)
class Illustration:
    """Data of a figure that is not a comparison of trained runs.

    Attributes:
        kind: which function of :mod:`rbue.lab.paper.illustrations` makes it.
        data: the data set whose images it shows, if any.
        run: the model and method of the trained run it shows, if any.
    """

    kind: str
    data: str | None = None
    run: tuple[str, str] | None = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        id: how it is called here.
        place: where it stands in the paper.
        title: what it shows.
        grid: what to train, if anything.
        measures: what to measure on each trained run.
        drawings: what to draw.
        illustration: data that does not come from a grid.
        notes: what the paper leaves open and how it is read here.
    """

    id: str
    place: str
    title: str
    grid: Grid | None = None
    measures: tuple[Measure, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    illustration: Illustration | None = None
    notes: tuple[str, ...] = ()

    @property
    def shows_one_run(self) -> bool:
        """Whether further repetitions would not be drawn, or take too long: corrupted images are 95 times the clean."""
        return "shift" in self.measures or any(one.kind in ("heat-maps", "framework") for one in self.drawings)

    @property
    def data(self) -> str | None:
        """The data set it needs, if any."""
        one = self.grid or self.illustration
        return None if one is None else one.data


MODELS = ("vgg13", "resnet18", "densenet121")
SHIFT_MODEL = "densenet121"
DROPRELU = tuple(f"mc-droprelu:{q}" for q in (0.8, 0.85, 0.9, 0.95))
DROPOUT = ("mc-dropout:0.2", "mc-dropout:0.5")
ENSEMBLE = "deep-ensemble:4"
METHODS = ("single", *DROPOUT, ENSEMBLE, "svi", "mc-rrelu", *DROPRELU)
"""The ten rows of Tables 1 to 3."""

SIX = ("single", "mc-dropout:0.2", ENSEMBLE, "svi", "mc-rrelu", "mc-droprelu:0.9")
"""One row a method for the six boxes of the shift figures."""

DIVERSE = (ENSEMBLE, "mc-droprelu:0.8", "svi", "mc-droprelu:0.95", "mc-rrelu", "mc-dropout:0.5", "mc-dropout:0.2")
"""The seven rows of Tables 4 and 5."""

SWEEP = tuple(f"mc-droprelu:{q}" for q in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99))
RELATED = ("snapshot-ensemble:4", "treenet:4", "batch-ensemble:4", "packed-ensemble:4", "swag", "sgld", "laplace")
"""Methods that the paper discusses and does not compare with."""

POSITIONS = ("mc-droprelu:0.8", "mc-droprelu:0.8,last", "mc-droprelu:0.8,first")

CLEAN = ("accuracy", "ece", "training_seconds", "parameters")
_ECE_NOTE = (
    "The paper's text bins the score of the true label; its formula and its reference use the predicted label, "
    "which is what is measured here (30 bins)."
)
_DROPOUT_NOTE = "Where MC-Dropout's dropout sits is not stated; here it sits before the classifier."
_DIVERSITY_NOTE = (
    "The data set is not stated; CIFAR-10 is assumed. Compared are the four members of Deep Ensemble, or the first "
    "four samples of a method with one network; JSD is in nats."
)
_NETWORK_NOTE = (
    "The paper shows DenseNet-121. Here it is the first of `--models`, else that or another network that was measured; "
    "the captions name it."
)
_SHIFT_NOTE = (
    "The paper shows six methods and does not state p and q. All ten rows are drawn, and six with p=0.2 and q=0.9."
)
_CORRUPTED = {
    "cifar10": "The corruptions are computed here from the CIFAR-10 test images unless CIFAR-10-C is on this machine.",
    "tiny-imagenet": "The corruptions are computed here from TinyImageNet's validation images; the published "
    "TinyImageNet-C was made from other images.",
}


def _clean_table(number: int, name: str, data: str, title: str) -> Experiment:
    return Experiment(
        id=name,
        place=f"Table {number}",
        title=f"{title}: accuracy, ECE, training time and size of ten methods on three networks",
        grid=Grid(data, MODELS, METHODS),
        measures=("clean",),
        drawings=(Drawing("table", CLEAN, caption=f"{title}, clean test images."),),
        notes=(_ECE_NOTE, _DROPOUT_NOTE),
    )


def _position(name: str, place: str, title: str, data: str, *models: str, notes: tuple[str, ...] = ()) -> Experiment:
    return Experiment(
        id=name,
        place=place,
        title=f"DropReLU (q=0.8) at all, the last or the first ReLU of {title}",
        grid=Grid(data, models, POSITIONS),
        measures=("clean", "diversity"),
        drawings=(
            Drawing("table", ("accuracy", "ece", "training_seconds", "mean_jsd"), caption="Where DropReLU sits."),
        ),
        notes=(
            "The paper's first layer is “before the first convolution”, where there is no ReLU; read as the first ReLU "
            "call site.",
            *notes,
        ),
    )


def _diversity(name: str, place: str, title: str, drawing: Drawing) -> Experiment:
    return Experiment(
        id=name,
        place=place,
        title=title,
        grid=Grid("cifar10", ("resnet18",), DIVERSE),
        measures=("clean", "diversity"),
        drawings=(drawing,),
        notes=(_DIVERSITY_NOTE, _DROPOUT_NOTE),
    )


def _shift(name: str, place: str, data: str, title: str, drawings: tuple[Drawing, ...]) -> Experiment:
    return Experiment(
        id=name,
        place=place,
        title=title,
        grid=Grid(data, (SHIFT_MODEL,), METHODS, any_network=True),
        measures=("clean", "shift"),
        drawings=drawings,
        notes=(_NETWORK_NOTE, _SHIFT_NOTE, _CORRUPTED[data], _ECE_NOTE),
    )


def _six_and_all(kind: str, measure: str, caption: str) -> tuple[Drawing, ...]:
    return (
        Drawing(kind, (measure,), SIX, f"{caption}, with p=0.2 and q=0.9."),
        Drawing(kind, (measure,), METHODS, f"{caption}, all ten rows."),
    )


_QUARTILES = "under 19 corruptions at each severity: quartiles, least and greatest"
_BOXES = (
    *_six_and_all("boxes", "accuracy", f"Accuracy {_QUARTILES}"),
    *_six_and_all("boxes", "ece", f"ECE {_QUARTILES}"),
)
_MEDIANS = _six_and_all("medians", "ece", "Median ECE over 19 corruptions at each severity")

EXPERIMENTS: tuple[Experiment, ...] = (
    _clean_table(1, "table1-cifar10", "cifar10", "CIFAR-10"),
    _clean_table(2, "table2-cifar100", "cifar100", "CIFAR-100"),
    _clean_table(3, "table3-tinyimagenet", "tiny-imagenet", "TinyImageNet"),
    _diversity(
        "table4-jsd",
        "Table 4",
        "Mean-JSD and Max-JSD of ResNet-18 under seven methods",
        Drawing("table", ("mean_jsd", "max_jsd"), caption="How far the sampled predictions lie apart."),
    ),
    _diversity(
        "table5-dis",
        "Table 5",
        "Mean-DIS and Max-DIS of ResNet-18 under seven methods",
        Drawing("table", ("mean_dis", "max_dis"), caption="How often two sampled networks name different classes."),
    ),
    _position(
        "table6-position",
        "Table 6",
        "DenseNet-121 on TinyImageNet",
        *("tiny-imagenet", "densenet121"),
        notes=(
            "The row of all layers repeats Table 3's MC-DropReLU(0.8), where the paper gives another training time.",
        ),
    ),
    _position(
        *("position-tinyimagenet", "Beside Table 6", "ResNet-18 on TinyImageNet"),
        *("tiny-imagenet", "resnet18"),
        notes=("Not in the paper: its table has DenseNet-121.",),
    ),
    _position(
        *("position-cifar10", "Beside Table 6", "two networks on CIFAR-10"),
        *("cifar10", "resnet18", "densenet121"),
        notes=("Not in the paper: its table has TinyImageNet.",),
    ),
    Experiment(
        id="related-cifar10",
        place="Related work",
        title="The methods of the related work beside the paper's, ResNet-18 on CIFAR-10",
        grid=Grid("cifar10", ("resnet18",), (*METHODS, *RELATED)),
        measures=("clean",),
        drawings=(
            Drawing(
                "table",
                ("accuracy", "ece", "nll", "training_seconds", "stored_bytes", "prediction_seconds"),
                caption="Methods that the paper discusses, trained as long as its own.",
            ),
        ),
        notes=(
            _ECE_NOTE,
            "Each is trained for as many epochs as Single, with its batch and weight decay, and the schedule that its "
            "authors describe; none was tuned.",
            "A prediction is that of all test images, with all samples or members, beginning with the first step. It "
            "is timed where no other task ran beside it; what a run stores is noted since rbue 0.2.",
        ),
    ),
    Experiment(
        id="fig-activations",
        place="Figure 1",
        title="ReLU, DropReLU and RReLU",
        drawings=(Drawing("curves", caption="The three activations; broken lines and bands show what is random."),),
        illustration=Illustration("activations"),
    ),
    Experiment(
        id="fig-network",
        place="Figure 2",
        title="A network with ReLU, DropReLU and RReLU",
        drawings=(Drawing("network", caption="One random pass through a small network with each activation."),),
        illustration=Illustration("network"),
    ),
    Experiment(
        id="fig-framework",
        place="Figure 3",
        title="One image, many random passes, their mean and entropy",
        grid=Grid("cifar10", ("resnet18",), ("mc-droprelu:0.9",)),
        measures=("clean",),
        drawings=(Drawing("framework", caption="A real prediction of MC-DropReLU (q=0.9) on ResNet-18."),),
        illustration=Illustration("framework", data="cifar10", run=("resnet18", "mc-droprelu:0.9")),
        notes=("The paper draws a scheme; here it is the test image with the highest entropy among the first 200.",),
    ),
    Experiment(
        id="fig-shot-noise",
        place="Figure 4",
        title="Shot noise at severities 0 to 5",
        drawings=(Drawing("images", caption="Test images without and with shot noise of growing severity."),),
        illustration=Illustration("shot-noise", data="cifar10"),
    ),
    _shift("fig-shift-cifar10", "Figure 5", "cifar10", "CIFAR-10 under corruptions", _BOXES),
    _shift("fig-shift-cifar10-ece", "Figure 6", "cifar10", "Median ECE on corrupted CIFAR-10", _MEDIANS),
    _shift("fig-shift-tinyimagenet", "Figure 7", "tiny-imagenet", "TinyImageNet under corruptions", _BOXES),
    _shift("fig-shift-tinyimagenet-ece", "Figure 8", "tiny-imagenet", "Median ECE on corrupted TinyImageNet", _MEDIANS),
    _diversity(
        "fig-jsd",
        "Figure 9",
        "JSD between every two of four sampled networks",
        Drawing("heat-maps", ("jsd",), caption="JSD of every pair, ResNet-18."),
    ),
    _diversity(
        "fig-dis",
        "Figure 10",
        "Disagreement between every two of four sampled networks",
        Drawing("heat-maps", ("dis",), caption="DIS of every pair, ResNet-18."),
    ),
    Experiment(
        id="fig-q-sweep",
        place="Figure 11",
        title="Accuracy and ECE of ResNet-18 on CIFAR-10 over q",
        grid=Grid("cifar10", ("resnet18",), (*SWEEP, *DROPOUT, ENSEMBLE)),
        measures=("clean",),
        drawings=(Drawing("plane", ("accuracy", "ece"), caption="Stars: MC-DropReLU by q; right and low is better."),),
        notes=("The values of q in the figure are not stated; those of the tables and 0.5, 0.6, 0.7, 0.99 are taken.",),
    ),
    Experiment(
        id="variance",
        place="§3.4",
        title="Variance of a layer's sum: the paper's formula, the exact value, a simulation",
        drawings=(Drawing("variance", caption="Variance of a sum of DropReLUs against q, and dropout's at p=1−q."),),
        illustration=Illustration("variance"),
        notes=(
            "The layer is 256 numbers from a standard normal distribution. The paper's ε is q(1−q)·Σ x² over x>0; its "
            "sum leaves out the covariance of the two terms.",
        ),
    ),
)

IDS = tuple(experiment.id for experiment in EXPERIMENTS)


def get(name: str) -> Experiment:
    """The experiment of an id; a wrong one gets a suggestion."""
    for experiment in EXPERIMENTS:
        if experiment.id == name:
            return experiment
    hint = did_you_mean(name, IDS)
    raise InvalidInput(f"the paper has no experiment {name!r}{hint}; `rbue paper list` shows all of them.")


def chosen(names: Iterable[str]) -> tuple[Experiment, ...]:
    """The experiments that ids or patterns such as ``table*`` name, in the paper's order; all for no names."""
    wanted: set[str] = set()
    names = list(names)
    for name in names:
        matching = [one for one in IDS if fnmatchcase(one, name)]
        wanted.update(matching or [get(name).id])
    return tuple(one for one in EXPERIMENTS if one.id in wanted or not names)
