"""Figures hold the numbers they were given, in one style that colour-blind readers can tell apart."""

import builtins
import itertools
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, PathPatch, Rectangle
from matplotlib.text import Text

import rbue
from rbue.errors import InvalidInput, RbueError
from rbue.lab.report import figure_style as style
from rbue.lab.report import figures, illustrations, severity_figures
from rbue.lab.report.figures import PlanePoint, luminance, readable_on

METHODS = ["single", "mc-dropout:0.2", "deep-ensemble:4", "svi", "mc-rrelu", "mc-droprelu:0.8", "mc-droprelu:0.9"]
CLASSES = [f"class {number}" for number in range(5)]


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.fixture
def image(random):
    return random.integers(0, 256, (8, 8, 3), dtype=np.uint8)


@pytest.fixture
def samples(random):
    return random.dirichlet(np.ones(5), size=12)


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def bars(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_activation_curves_are_the_functions():
    figure = illustrations.activation_curves(q=0.8, lower=0.1, upper=0.3, reach=2)
    relu, drop, random = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ReLU", "DropReLU", "RReLU"]
    assert relu.lines[0].get_ydata().tolist() == [0, 0, 2]
    kept, dropped = drop.lines[:2]
    assert kept.get_ydata().tolist() == [0, 0, 2]
    assert dropped.get_ydata().tolist() == [-2, 0]
    assert "0.8" in kept.get_label()
    assert dropped.get_label().endswith("0.2")
    assert random.lines[0].get_ydata()[0] == pytest.approx(-0.4)
    band = random.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(-0.6)
    assert sorted(set(band.round(6)))[1] == pytest.approx(-0.2)


def test_network_has_a_curve_in_every_hidden_neuron():
    figure = illustrations.network_drawing(layers=(3, 4, 4, 2), q=0.5, seed=1)
    assert len(figure.axes) == 3
    for axes in figure.axes:
        assert sum(isinstance(patch, Circle) for patch in axes.patches) == 13
        assert len(axes.lines) == 3 * 4 + 4 * 4 + 4 * 2 + 8
    slopes = [_drawn_slopes(axes) for axes in figure.axes]
    assert set(slopes[0]) == {0}
    assert set(slopes[1]) == {0, 1}
    assert all(1 / 8 <= slope <= 1 / 3 for slope in slopes[2])
    with pytest.raises(InvalidInput, match="ReLU, DropReLU, RReLU"):
        illustrations.network_drawing(kinds=("GELU",))


def _drawn_slopes(axes):
    curves = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) == 3]
    return [round(float((b[1] - a[1]) / (b[0] - a[0])), 6) for a, b, _ in curves]


def test_framework_shows_passes_mean_and_entropy_of_a_real_prediction(image):
    import torch
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 5))
    x = torch.from_numpy(image).float().permute(2, 0, 1)[None] / 255
    converted = rbue.convert(network, rbue.DropReLU(0.5), example=x)
    prediction = rbue.predict(converted, x, samples=8, return_samples=True)
    figure = illustrations.framework(image, prediction.samples[:, 0], CLASSES, shown=3)
    picture, *passes, result = figure.axes
    assert picture.images[0].get_array().shape == (8, 8, 3)
    assert [bar.get_height() for bar in bars(passes[-1])] == pytest.approx(prediction.samples[7, 0].tolist())
    assert [bar.get_height() for bar in bars(result)] == pytest.approx(prediction.probs[0].tolist(), abs=1e-6)
    assert f"{float(prediction.entropy[0]):.3f}" in result.get_title(loc="left")
    with pytest.raises(InvalidInput, match="5 classes"):
        illustrations.framework(image, prediction.samples, CLASSES)


def test_image_rows(image):
    figure = illustrations.image_rows([[image, image[:, :, :1]]], ["clean", "severity 1"])
    assert [axes.images[0].get_array().shape for axes in figure.axes] == [(8, 8, 3), (8, 8)]
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["clean", "severity 1"]
    rows = illustrations.image_rows([[image, image], [image.tolist(), image]], ["clean", "severity 1"])
    assert [len(axes.texts) for axes in rows.axes] == [0, 0, 1, 1]
    with pytest.raises(InvalidInput, match="one caption"):
        illustrations.image_rows([[image]], [])


def test_boxes_are_numpys_quartiles_and_whiskers_reach_the_ends(random):
    values = {method: {severity: random.random(19) for severity in (1, 5)} for method in METHODS}
    figure = severity_figures.severity_boxes(values, "ECE")
    (axes,) = figure.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, PathPatch)]
    assert len(boxes) == 14
    for box, numbers in zip(boxes, (values[m][s] for m in METHODS for s in (1, 5)), strict=True):
        heights = box.get_path().vertices[:4, 1]
        assert sorted(set(heights.round(9))) == pytest.approx(np.percentile(numbers, [25, 75]))
    lows = {round(min(line.get_ydata()), 9) for line in axes.lines}
    assert all(round(float(numbers.min()), 9) in lows for one in values.values() for numbers in one.values())
    assert [label.get_text() for label in axes.get_legend().get_texts()] == METHODS
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "5"]


def test_medians(random):
    values = {method: {severity: random.random(19) for severity in range(3)} for method in METHODS[:2]}
    (axes,) = severity_figures.severity_medians(values, "ECE").axes
    for line, method in zip(axes.lines, values, strict=True):
        assert line.get_ydata() == pytest.approx([np.median(values[method][severity]) for severity in range(3)])
    assert axes.get_xticklabels()[0].get_text() == "clean"
    with pytest.raises(InvalidInput, match="nothing to draw"):
        severity_figures.severity_medians({}, "ECE")


def test_heat_maps_share_one_scale(random):
    matrices = {method: random.random((4, 4)) * (turn + 1) for turn, method in enumerate(METHODS)}
    figure = figures.heat_maps(matrices, "JSD")
    maps = [axes for axes in figure.axes if axes.images]
    assert {axes.images[0].get_clim() for axes in maps} == {(0, max(m.max() for m in matrices.values()))}
    for axes, (name, matrix) in zip(maps, matrices.items(), strict=True):
        assert axes.get_title() == name
        assert [text.get_text() for text in axes.texts] == [f"{value:.3f}" for value in matrix.ravel()]
    assert "JSD" in texts(figure)
    with pytest.raises(InvalidInput, match="square"):
        figures.heat_maps({"a": np.zeros((2, 3))}, "JSD")


def test_numbers_on_heat_maps_stand_out():
    for place in np.linspace(0, 1, 101):
        colour = luminance(colormaps[style.SEQUENTIAL](place))
        shade = 0.0 if readable_on(colormaps[style.SEQUENTIAL](place)) == "#000000" else 1.0
        assert (max(colour, shade) + 0.05) / (min(colour, shade) + 0.05) >= 4.5


def test_equal_pictures_share_no_id():
    text = style.inline_svg(figures.heat_maps({"a": np.eye(2), "b": np.eye(2)}, "JSD"), "two maps", "one")
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(names)) == len(names)


def test_many_lines_have_their_legend_below():
    curves = {f"mc-droprelu:0.{number}": {1: {"ece": 0.1}, 4: {"ece": 0.05}} for number in range(1, 8)}
    assert len(figures.lines_against_samples(curves, {"ece": "ECE"}).legends) == 1
    few = dict(list(curves.items())[:2])
    assert figures.lines_against_samples(few, {"ece": "ECE"}).legends == []


@pytest.mark.parametrize("more", ["", " (augmented: flip,shift:2)"])
def test_a_legend_below_is_no_wider_than_its_figure(more):
    methods = ("single", "deep-ensemble:4", "mc-dropout:0.5", "mc-droprelu:0.9")
    figure = figures.accuracy_ece_plane([PlanePoint(name + more, 0.9, 0.1) for name in methods])
    figure.draw_without_rendering()
    assert figure.axes[0].get_legend().get_window_extent().width <= figure.get_window_extent().width
    assert figure.axes[0].get_legend()._ncols == (1 if more else 3)


def test_plane_has_stars_coloured_by_q_a_square_and_a_circle():
    stars = [PlanePoint(f"mc-droprelu:{q}", 0.9 + q / 100, 0.1 - q / 20, q) for q in (0.5, 0.8, 0.99)]
    points = [PlanePoint("mc-dropout:0.2", 0.91, 0.05), PlanePoint("deep-ensemble:4", 0.95, 0.02), *stars]
    axes = figures.accuracy_ece_plane(points).axes[0]
    square, circle, many = (one for one in axes.collections if isinstance(one, PathCollection))
    assert square.get_offsets().tolist() == [[0.91, 0.05]]
    assert circle.get_offsets().tolist() == [[0.95, 0.02]]
    assert many.get_array().tolist() == [0.5, 0.8, 0.99]
    assert np.allclose(many.get_offsets(), [[one.accuracy, one.ece] for one in stars])
    assert [len(one.get_paths()[0].vertices) for one in (square, many)] == [5, 11]


def test_labels_of_stars_that_lie_close_do_not_overlap():
    close = [(0.943, 0.0256, 0.85), (0.946, 0.0254, 0.9), (0.948, 0.0255, 0.95), (0.9431, 0.0223, 0.8)]
    stars = [PlanePoint(f"mc-droprelu:{q}", accuracy, ece, q) for accuracy, ece, q in [*close, (0.923, 0.011, 0.5)]]
    for some in (stars, stars[:1], [stars[0]] * 2):
        figure = figures.accuracy_ece_plane(some)
        FigureCanvasAgg(figure).draw()
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
        assert len(boxes) == len(some)
        assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_reliability_bars_are_the_accuracies_of_filled_bins():
    edges, counts = np.linspace(0, 1, 5), [0, 10, 5, 85]
    right = [np.nan, 0.4, 0.8, 0.9]
    above, below = figures.reliability_diagram(edges, counts, [np.nan, 0.3, 0.6, 0.95], right, label="svi").axes
    assert [bar.get_height() for bar in bars(above)] == right[1:]
    assert [bar.get_x() for bar in bars(above)] == [0.25, 0.5, 0.75]
    assert [bar.get_height() for bar in bars(below)] == [0.1, 0.05, 0.85]


def test_risk_coverage_keeps_the_ends_of_long_curves():
    coverage = np.arange(1, 5001) / 5000
    (axes,) = figures.risk_coverage_curves({"single": (coverage, coverage / 10), "svi": (coverage, coverage / 5)}).axes
    line = axes.lines[1]
    assert len(line.get_xdata()) <= 300
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (1 / 5000, 1)
    assert line.get_ydata()[-1] == pytest.approx(0.2)


def test_histograms_are_shares_of_their_group():
    right, wrong = np.array([0.0, 0.1, 0.1, 1.0]), np.array([1.5])
    (axes,) = figures.histogram_pair({"right": right, "wrong": wrong}, np.log(10), label="svi", bins=4).axes
    heights = [bar.get_height() for bar in bars(axes)]
    assert heights[:4] == [0.75, 0.25, 0, 0]
    assert heights[4:] == [0, 0, 1, 0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["4 right", "1 wrong"]
    figures.histogram_pair({"right": right, "wrong": np.array([])}, 2.3, label="no error at all")
    with pytest.raises(InvalidInput, match="two groups"):
        figures.histogram_pair({"right": right}, 2.3, label="svi")


def test_intervals_stand_on_the_line_of_their_method():
    methods = [figures.Measured("single", 0.9, (0.8, 0.95)), figures.Measured("svi", 0.7)]
    accuracy, nll = figures.interval_panels({"accuracy": methods, "NLL": methods[::-1]}, percent=["accuracy"]).axes
    drawn = [line.get_xydata().tolist() for line in accuracy.lines]
    assert drawn == [[[0.8, 0], [0.95, 0]], [[0.9, 0]], [[0.7, 1]]]
    assert len(nll.lines) == 3
    with pytest.raises(InvalidInput, match="nothing to draw"):
        figures.interval_panels({})


def test_thresholds_are_rings_at_their_place():
    curve = (np.array([0.5, 1.0]), np.array([0.0, 0.2]))
    (axes,) = figures.risk_coverage_curves({"svi": curve}, allowed=0.05, chosen={"svi": (0.7, 0.04)}).axes
    assert axes.collections[0].get_offsets().tolist() == [[0.7, 0.04]]
    assert axes.lines[1].get_ydata() == [0.05, 0.05]


def test_a_confusion_matrix_has_a_field_for_each_pair_that_occurred():
    figure = figures.confusion_matrix([[3, 1], [0, 4]], ["cat", "a very long name of a class"])
    (axes,) = figure.axes
    assert [(text.get_position(), text.get_text()) for text in axes.texts] == [
        ((0, 0), "3"),
        ((1, 0), "1"),
        ((1, 1), "4"),
    ]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["cat", "a very long n…"]
    with pytest.raises(InvalidInput, match="shape"):
        figures.confusion_matrix([[1]], ["a", "b"])


def test_bins_of_a_reliability_diagram_have_intervals():
    ends = ([0.0, 0.2, 0.3, 0.5], [1.0, 0.6, 0.9, 1.0])
    sure, right = [np.nan, 0.3, 0.6, 0.95], [np.nan, 0.4, 0.6, 0.9]
    above = figures.reliability_diagram(np.arange(5) / 4, [0, 5, 5, 5], sure, right, label="svi", intervals=ends).axes[
        0
    ]
    drawn = [segment.tolist() for segment in above.collections[0].get_segments()]
    assert drawn == [[[0.3, 0.2], [0.3, 0.6]], [[0.6, 0.3], [0.6, 0.9]], [[0.95, 0.5], [0.95, 1.0]]]


def test_variance_lines():
    q = np.linspace(0, 1, 5)
    (axes,) = illustrations.variance_against_q(q, 3 * q, 2 * q, 2 * q, error=0.1 * q, dropout=q).axes
    assert [line.get_ydata()[-1] for line in axes.lines[:3]] == [3, 2, 1]
    ends = axes.collections[0].get_segments()[-1][:, 1]
    assert ends == pytest.approx([1.7, 2.3])


def test_lines_against_samples():
    curves = {"svi": {4: {"accuracy": 0.8, "ece": 0.1}, 1: {"accuracy": 0.7, "ece": 0.2}}}
    accuracy, ece = figures.lines_against_samples(curves).axes
    assert accuracy.lines[0].get_xydata().tolist() == [[1, 0.7], [4, 0.8]]
    assert ece.lines[0].get_xydata().tolist() == [[1, 0.2], [4, 0.1]]


SHARES = [(1.0,), (0.0,), (0.97, 1.0), (0.6, 1.0), (0.0, 0.02), (0.0, 1.0), (0.999, 1.0), (0.9, 0.95)]


@pytest.mark.parametrize("shares", SHARES)
def test_no_tick_lies_beyond_what_a_share_can_be(shares):
    curve = {number: {"accuracy": value} for number, value in enumerate(shares, 1)}
    measured = [figures.Measured(f"a{number}", value) for number, value in enumerate(shares)]
    drawn = {
        "y": figures.lines_against_samples({"svi": curve}, {"accuracy": "accuracy"}, x="epoch").axes[0],
        "x": figures.interval_panels({"accuracy": measured}, percent=["accuracy"]).axes[0],
    }
    points = [PlanePoint("svi", value, 0.1) for value in shares]
    for axis, axes in (*drawn.items(), ("x", figures.accuracy_ece_plane(points).axes[0])):
        FigureCanvasAgg(axes.figure).draw()
        (low, high), ticks = getattr(axes, f"get_{axis}lim")(), getattr(axes, f"get_{axis}ticks")()
        shown = [tick for tick in ticks if low <= tick <= high]
        assert shown
        assert all(-1e-9 <= tick <= 1 + 1e-9 for tick in shown), shown
        assert low < min(shares)
        assert max(shares) < high


@pytest.mark.parametrize("epochs", [1, 2, 3, 200])
def test_epochs_are_whole_numbers(epochs):
    curve = {number: {"loss": 1.0 / number} for number in range(1, epochs + 1)}
    (axes,) = figures.lines_against_samples({"svi": curve}, {"loss": "loss"}, x="epoch").axes
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)


def test_pyplot_is_never_touched_and_threads_do_not_disturb_each_other():
    before = "matplotlib.pyplot" in sys.modules

    def draw(turn):
        kind = style.inline_svg if turn % 2 else lambda figure, alt, prefix: style.svg(figure)
        return kind(figures.risk_coverage_curves({"single": ([0, 1], [0, 1])}), "alt", "p")

    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(draw, range(4)))
    assert len(set(drawn)) == 2
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_svg_for_a_page_follows_its_colours():
    figure = figures.risk_coverage_curves({method: ([0, 1], [0, 1]) for method in METHODS})
    text = style.inline_svg(figure, 'a < "b"', "one")
    root = ElementTree.fromstring(text.replace("xlink:href", "href"))
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'a < "b"'
    names = {element.get("id") for element in root.iter() if element.get("id")}
    assert all(name.startswith("one-") for name in names)
    assert all(f"var({variable})" in text for variable in ("--ink", "--muted", "--line", "--method-mc-droprelu"))
    left = {colour for colour in set(style.THEME) if colour in text}
    assert not left
    assert all(f">{method}<" in text for method in METHODS)
    alone = style.svg(figure)
    assert alone.startswith("<?xml")
    assert "var(" not in alone
    assert alone == style.svg(figure)


def test_missing_matplotlib_is_one_sentence(monkeypatch):
    usual = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return usual(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RbueError, match=r"pip install 'rbue\[lab\]'"):
        illustrations.activation_curves()


def test_every_text_has_a_colour_of_the_style(image, random):
    values = {method: {severity: random.random(19) for severity in (0, 1)} for method in METHODS}
    drawn = [
        illustrations.activation_curves(),
        severity_figures.severity_boxes(values, "ECE"),
        illustrations.image_rows([[image]], ["a"]),
        figures.risk_coverage_curves({"single": ([0, 1], [0, 1])}),
    ]
    for figure in drawn:
        assert isinstance(figure, Figure)
        shown = {to_hex(text.get_color()) for text in figure.findobj(Text) if text.get_text() and text.get_visible()}
        assert shown <= {style.INK, style.MUTED}


# What people with each kind of colour-blindness see of linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1).
SEEN = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_methods_can_be_told_apart_by_everyone(sight, scheme):
    colours = _page_colours()[scheme]
    methods = [colours[f"--method-{name}"] for name in style.METHOD_COLOURS]
    seen = [_lab(np.asarray(SEEN[sight]) @ _linear(colour)) for colour in methods]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12
    assert len(set(style.METHOD_MARKERS.values())) == len(methods)
    background = _linear(colours["--paper"]) @ [0.2126, 0.7152, 0.0722]
    for colour in methods:
        light, dark = sorted([_linear(colour) @ [0.2126, 0.7152, 0.0722], background], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3


def test_the_page_has_the_colours_of_the_figures():
    light, dark = _page_colours()
    assert {name: light[name] for name in style.THEME.values() if name != "--paper"} == {
        name: colour for colour, name in style.THEME.items() if name != "--paper"
    }
    assert set(style.THEME.values()) <= set(dark)


def _page_colours():
    from importlib.resources import files

    text = files("rbue.lab.report").joinpath("assets/page.css").read_text()
    light, dark = text.split("prefers-color-scheme: dark", 1)
    found = [dict(re.findall(r"(--[\w-]+): (#\w{6});", part)) for part in (light, dark.partition("\n}\n")[0])]
    return found[0], found[1]


def _linear(colour):
    value = np.array(to_rgb(colour))
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _lab(linear):
    weights = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x = weights @ np.clip(linear, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.filterwarnings("error")
def test_names_that_only_the_readers_fonts_can_show_are_drawn_in_a_page_without_a_warning():
    text = style.inline_svg(figures.confusion_matrix(np.eye(2, dtype=int), ["\u72ac", "\u732b"]), "alt", "p")
    assert text.count(">\u72ac<") == 2


def test_names_of_classes_are_no_formulas_and_no_markup():
    names = [r"$\frac$", "</text><script>", "a --> b", "$x$"]
    text = style.inline_svg(figures.confusion_matrix(np.eye(4, dtype=int), names), "alt", "p")
    assert "<script" not in text
    assert text.count(r"$\frac$") >= 2  # a name at each side
    assert text.count(">$x$<") == 2
