"""The pictures of ``docs/tutorials``, each drawn from what the blocks of its page computed."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from rbue.lab.report.figure_style import (
    BAD,
    GOOD,
    INK,
    MUTED,
    SEQUENTIAL,
    SMALL,
    TEXT,
    TITLE,
    colour_bar,
    dress,
    legend,
    new_figure,
    percent_ticks,
    undress,
)
from rbue.lab.report.figures import Measured, interval_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Names = dict[str, Any]


def trained_network(names: Names) -> Figure:
    """The least sure test images, and accuracy against the share answered."""
    pred, plain, y, images = (names[name] for name in ("pred", "plain", "y_test", "x_test"))
    figure = new_figure(8.6, 3.0)
    left, right = figure.subfigures(1, 2, width_ratios=[1.35, 1])
    left.suptitle("least sure of all test images", color=INK, fontsize=TITLE)
    order = pred.entropy.argsort(descending=True)[:12]
    for axes, one in zip(left.subplots(2, 6).flat, order, strict=True):
        undress(axes)
        axes.imshow(images[one, 0], cmap="gray_r", vmin=-0.3, vmax=1.3)
        label, truth = int(pred.label[one]), int(y[one])
        axes.set_title(
            f"{label}: {pred.confidence[one]:.0%}\nis {truth}", color=GOOD if label == truth else BAD, fontsize=SMALL
        )
    axes = right.subplots()
    rows = [
        ("plain confidence", plain.amax(1), plain.argmax(1), MUTED, (0, (4, 2))),
        ("tuned, entropy", -pred.entropy, pred.label, BAD, "-"),
    ]
    for name, sure, label, colour, line in rows:
        hits = (label == y)[sure.argsort(descending=True)].double()
        count = torch.arange(1, len(hits) + 1)
        kept = slice(int(0.4 * len(hits)), None)
        axes.plot((count / len(hits))[kept], (hits.cumsum(0) / count)[kept], color=colour, linestyle=line, label=name)
    dress(axes, x="share of images answered, the surest first", y="accuracy of those", grid="both")
    percent_ticks(axes.xaxis)
    percent_ticks(axes.yaxis)
    legend(axes, loc="lower left")
    return figure


def text(names: Names) -> Figure:
    """Entropies of single sentences, a row a group."""
    figure = new_figure(7.4, 2.7)
    axes = figure.subplots()
    generator = torch.Generator().manual_seed(0)
    found = names["found"]
    for place, (name, pred) in enumerate(found.items()):
        height = place + 0.28 * (2 * torch.rand(len(pred), generator=generator) - 1)
        colour = BAD if name == "one unknown word" else GOOD
        axes.scatter(pred.entropy, height, s=14, color=colour, alpha=0.45, linewidths=0)
        axes.plot([pred.entropy.mean()] * 2, [place - 0.38, place + 0.38], color=INK, linewidth=1.6)
    dress(axes, x="entropy in nats (a coin has 0.69); the bar is the mean", grid="x")
    axes.set_yticks(range(len(found)), list(found), fontsize=TEXT, color=INK)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlim(-0.01, 0.72)
    return figure


def regression(names: Names) -> Figure:
    """The data, the function, the prediction and its two bands."""
    figure = new_figure(7.4, 3.6)
    axes = figure.subplots()
    x = torch.linspace(-1.8, 1.8, 181)
    mean, noise, both = (
        part.squeeze(1)
        for part in (names["pred"].mean, 1.645 * names["pred"].aleatoric.sqrt(), 1.645 * names["pred"].std)
    )
    axes.fill_between(
        x, mean - both, mean + both, color=BAD, alpha=0.18, linewidth=0, label="90 % interval, both parts"
    )
    axes.fill_between(x, mean - noise, mean + noise, color=BAD, alpha=0.4, linewidth=0, label="aleatoric part alone")
    axes.plot(x, torch.sin(5 * x), color=INK, linestyle=(0, (4, 2)), linewidth=1.2, label="the sine")
    axes.plot(x, mean, color=BAD, linewidth=1.8, label="prediction")
    axes.scatter(names["x"], names["y"], s=7, color=GOOD, alpha=0.6, linewidths=0, label="training data", zorder=3)
    dress(axes, x="x", y="y", grid="")
    axes.text(0, -2.1, "gap: no data", ha="center", color=MUTED, fontsize=SMALL)
    axes.axvspan(-0.3, 0.3, color=MUTED, alpha=0.08, linewidth=0)
    axes.set_xlim(-1.8, 1.8)
    axes.set_ylim(-2.3, 2.3)
    legend(axes, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=5, columnspacing=1.2, handlelength=1.6)
    return figure


def segmentation(names: Names) -> Figure:
    """Image, truth, prediction and both maps of the least sure images, one that is surer, and the cross."""
    from matplotlib.colors import ListedColormap

    pred, strange = names["pred"], names["strange"]
    classes = ListedColormap(["#f3f1ea", GOOD, BAD])
    middle = names["by_image"].argsort()[len(pred) // 2]
    chosen = [int(middle), *map(int, names["least_sure"][:2])]
    rows = [("typical", pred, names["test"], names["test_classes"], chosen[0])]
    rows += [("least sure", pred, names["test"], names["test_classes"], one) for one in chosen[1:]]
    rows += [("a cross", strange, names["cross"], None, 0)]
    figure = new_figure(7.4, 5.9)
    grid = figure.subplots(len(rows), 5)
    heads = ["image", "truth", "prediction", "entropy", "mutual information"]
    for axes, head in zip(grid[0], heads, strict=True):
        axes.set_title(head, color=INK, fontsize=TITLE)
    for line, (name, found, images, truth, one) in zip(grid, rows, strict=True):
        for axes in line:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        line[0].set_ylabel(name, color=INK, fontsize=TEXT)
        line[0].imshow(images[one, 0], cmap="gray", vmin=-1, vmax=1.8)
        shown = names["inside"].long() * 0 if truth is None else truth[one]
        line[1].imshow(shown, cmap=classes, vmin=0, vmax=2)
        if truth is None:
            line[1].text(0.5, 0.5, "neither", transform=line[1].transAxes, ha="center", va="center", color=MUTED)
        line[2].imshow(found.label[one], cmap=classes, vmin=0, vmax=2)
        entropy = line[3].imshow(found.entropy[one], cmap=SEQUENTIAL, vmin=0, vmax=1.1)
        information = line[4].imshow(found.mutual_information[one], cmap=SEQUENTIAL, vmin=0, vmax=0.1)
    for axes, kind, colour in ((grid[-1][1], "blue: circle", GOOD), (grid[-1][2], "orange: square", BAD)):
        axes.set_xlabel(kind, color=colour, fontsize=TEXT)
    colour_bar(figure, entropy, "nats", ax=grid[:, 3], location="bottom", pad=0.02)
    colour_bar(figure, information, "nats", ax=grid[:, 4], location="bottom", pad=0.02)
    return figure


def comparison(names: Names) -> Figure:
    """Accuracy and NLL of each method with their intervals."""
    panels = {
        title: [
            Measured(method, float(one.values[place]), one.interval(method)) for place, method in enumerate(one.methods)
        ]
        for title, one in (("accuracy", names["chance"]["accuracy"]), ("NLL", names["chance"]["nll"]))
    }
    return interval_panels(panels, percent=["accuracy"])


def damaged_images(names: Names) -> Figure:
    """One image under each kind of damage, and accuracy beside mean confidence."""
    figure = new_figure(8.6, 3.2)
    left, right = figure.subfigures(1, 2, width_ratios=[1.2, 1])
    left.suptitle("severity 3", color=INK, fontsize=TITLE)
    for axes, kind in zip(left.subplots(2, 4).flat, names["KINDS"], strict=True):
        undress(axes, kind.replace("_", " "))
        axes.imshow(names["damaged"][kind, 3][4])
    axes = right.subplots()
    axes.plot([0, 1], [0, 1], color=MUTED, lw=0.8, ls=(0, (4, 2)))
    axes.text(0.61, 0.55, "as sure as right", color=MUTED, fontsize=SMALL, ha="center", rotation=35)
    for net, colour, marker in (("plain", MUTED, "D"), ("random", BAD, "o")):
        pairs = {place: names["scores"](probs[net])[:2].tolist() for place, probs in names["found"].items()}
        rights, sures = zip(*pairs.values(), strict=True)
        axes.scatter(sures, rights, s=18, color=colour, marker=marker, alpha=0.75, lw=0, label=f"{net} network")
    for kind in ("fog", "contrast"):
        accuracy, sure = names["scores"](names["found"][kind, 5]["random"])[:2].tolist()
        axes.annotate(f"{kind}, 5", (sure, accuracy), xytext=(0, 7), textcoords="offset points", fontsize=SMALL)
    dress(axes, x="mean confidence", y="accuracy", grid="both")
    axes.set(xlim=(0.3, 1.01), ylim=(0.3, 1.02))
    percent_ticks(axes.xaxis)
    percent_ticks(axes.yaxis)
    legend(axes, loc="lower right")
    return figure


def decisions(names: Names) -> Figure:
    """Images with their conformal sets, and distances to the training images."""
    figure = new_figure(8.6, 3.0)
    left, right = figure.subfigures(1, 2, width_ratios=[1.1, 1])
    left.suptitle("new images and their sets", color=INK, fontsize=TITLE)
    sets, truth, images = names["sets"], names["y_new"], names["x_new"]
    sizes = sets.sum(1)
    order = [place for size in (1, 2, 3) for place in (sizes == size).nonzero().flatten()[:3].tolist()][:8]
    for axes, one in zip(left.subplots(2, 4).flat, order, strict=False):
        undress(axes)
        axes.imshow(images[one, 0], cmap="gray_r", vmin=-0.3, vmax=1.3)
        shown = "{" + ", ".join(map(str, sets[one].nonzero().flatten().tolist())) + "}"
        held = bool(sets[one, truth[one]])
        axes.set_title(f"{shown}\nis {int(truth[one])}", color=GOOD if held else BAD, fontsize=SMALL)
    axes = right.subplots()
    groups = {"known digits": names["inside_scores"], **names["outside_scores"]}
    for (name, scores), colour in zip(groups.items(), (GOOD, BAD, MUTED), strict=True):
        axes.hist(scores["nearest"].numpy(), bins=30, density=True, histtype="step", color=colour, lw=1.4, label=name)
    dress(axes, x="distance to the training images (features)", y="share of images", grid="y")
    axes.set_yticks([])
    axes.margins(y=0.3)
    legend(axes, loc="upper left")
    return figure


PICTURES: dict[str, Callable[[Names], Figure]] = {
    "trained-network": trained_network,
    "text": text,
    "regression": regression,
    "comparison": comparison,
    "damaged-images": damaged_images,
    "decisions": decisions,
    "segmentation": segmentation,
}
"""What draws the picture of a tutorial from the names that its blocks define."""


def webp(figure: Figure) -> bytes:
    """A figure as a WebP file, without loss."""
    buffer, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white", bbox_inches="tight", pad_inches=0.15)
    Image.open(buffer).convert("RGB").save(packed, format="webp", lossless=True, method=6)
    return packed.getvalue()
