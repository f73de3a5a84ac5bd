"""The page without a browser: structure, names, escaping, and that it needs nothing from elsewhere."""

import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest

from rbue.errors import InvalidInput
from rbue.lab.report import illustrations
from rbue.lab.report.page import (
    Bar,
    Bullets,
    Card,
    Cards,
    Columns,
    FigureBlock,
    Fold,
    Heading,
    Notice,
    Page,
    Section,
    TableBlock,
    Text,
)
from rbue.lab.report.run_tables import source_from_run
from rbue.lab.report.tables import Cell, Column, Table

VOID = {"meta", "link", "img", "br", "wbr", "path", "use", "image", "rect"}


class Outline(HTMLParser):
    """Every tag with its attributes; complains about tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self._open = [], []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def outline(full_html):
    return Outline(full_html)


def test_landmarks_headings_and_skip_link(outline):
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(outline.all(landmark)) == 1
    assert outline.all("html") == [{"lang": "en"}]
    assert [link["href"] for link in outline.all("a") if link.get("class") == "skip"] == ["#content"]
    assert len(outline.all("h2")) == len(outline.all("section")) == 6
    labelled = [section["aria-labelledby"] for section in outline.all("section")]
    assert labelled == [heading["id"] for heading in outline.all("h2")]


def test_ids_differ_and_every_link_leads_somewhere(outline):
    names = Counter(attributes["id"] for _, attributes in outline.tags if "id" in attributes)
    assert max(names.values()) == 1
    targets = [link["href"] for link in outline.all("a")]
    targets += [use["xlink:href"] for use in outline.all("use")]
    assert all(target.startswith("#") and target[1:] in names for target in targets)
    for attributes in (attributes for _, attributes in outline.tags):
        for name in attributes.get("aria-labelledby", "").split():
            assert name in names


def test_nothing_comes_from_elsewhere(full_html, outline):
    addresses = set(re.findall(r"\b(?:https?:)?//[\w.]+", full_html))
    assert addresses <= {"http://www.w3.org"}
    for attributes in (attributes for _, attributes in outline.tags):
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert "default-src 'none'" in full_html
    assert "@import" not in full_html
    assert not re.search(r"{[{%#]", full_html)


def test_everything_to_look_at_has_words(outline):
    assert len(outline.all("img")) == 6
    assert all(image["alt"] for image in outline.all("img"))
    pictures = outline.all("svg")
    assert len(pictures) == 6
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    scrolling = [one for _, one in outline.tags if one.get("class") == "scroll"]
    assert all(one["tabindex"] == "0" and (one.get("aria-label") or one.get("aria-labelledby")) for one in scrolling)


def test_words_are_escaped_in_every_form():
    page = Page(
        "<b> & co", [Section("1 < 2", [Text("a <i> `x<y` 50 % *b*")]), Section("1 < 2", [Text("again")])], "x_y"
    )
    html = page.html()
    assert "<title>&lt;b&gt; &amp; co</title>" in html
    assert "<code>x&lt;y</code>" in html
    assert 'id="1-2"' in html
    assert 'id="1-2-2"' in html
    assert page.markdown().startswith("# \\<b\\> \\& co\n\nx\\_y\n")
    assert "`x<y` 50 % \\*b\\*" in page.markdown()
    assert r"\texttt{x\textless{}y} 50 \%" in page.latex()
    assert r"\texttt{rbue run}" in Page("title", [], "`rbue run` does it.").latex()
    assert page.latex().count(r"\begingroup") == page.latex().count(r"\endgroup") == 1


def test_no_block_lets_markup_through():
    bad = "<script>alert('1')</script>\"`<b>`"
    cell = Cell(None, why=bad, link=bad, anchor=bad)
    table = Table([Column("a", bad, about=bad), Column("b", "b")], [{"a": bad, "b": cell}], bad)
    card = Card(np.zeros((2, 2, 3), dtype=np.uint8), bad, bad, bad, [Bar(bad, 0.5)])
    figure = FigureBlock(illustrations.activation_curves(), bad, bad, wide=True)
    inside = [Text(bad), Heading(bad), Bullets([bad]), Notice(bad, [bad]), TableBlock(table, explain=True), figure]
    found = Outline(Fold(bad, [Columns([inside, [Cards(bad, [card])]])]).html("one"))
    assert not found.all("script")
    assert found.all("b") == [{"style": "width:50.0%"}]  # the bar of the card
    assert found.all("img")[0]["alt"] == found.all("svg")[0]["aria-label"] == bad


def test_other_forms_keep_words_and_tables_and_leave_out_figures(full_page):
    markdown, latex = full_page.markdown(), full_page.latex()
    assert "| mc-droprelu:0.9 |" in markdown
    assert "## Images" not in markdown
    assert "Words beside it." in markdown
    assert "Words beside it." in latex
    assert "**Something is missing**" in markdown
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 2
    assert len(set(re.findall(r"\\label\{(.*?)\}", latex))) == 2
    assert r"\subsection*{Images}" not in latex


def test_figures_need_words_and_images_need_pixels():
    with pytest.raises(InvalidInput, match="alternative text"):
        FigureBlock(illustrations.activation_curves(), " ")
    with pytest.raises(InvalidInput, match="uint8"):
        Cards("cards", [Card(np.zeros((2, 2, 3)), "alt", "title")]).html("one")


def test_sources_say_where_a_run_was_trained_and_measured():
    result = {
        "samples": 30,
        "seed": 4,
        "data": {"name": "digits", "count": 355, "sha256": {"images": "abcdef0123456789"}},
        "environment": {"rbue": "1", "torch": "2", "python": "3", "gpu": "Big GPU", "cpu": "C", "commit": "abc"},
    }
    source = source_from_run("r", "single", 2, result, {"gpu": None, "cpu": "Small CPU", "threads": 2})
    assert source.hardware == "trained on Small CPU, 2 threads; measured on Big GPU"
    assert source.versions == "rbue 1, torch 2, python 3"
    assert source.data == "355 of digits, abcdef01"
    assert (source.samples, source.sample_seed, source.seed, source.commit) == (30, 4, 2, "abc")
    assert source_from_run("r", "single", 0, {}).hardware is None
    balanced = source_from_run("r", "mc-rrelu", 0, result | {"draws": "balanced"})
    assert (source.method, balanced.method) == ("single", "mc-rrelu, balanced draws")


def test_commits_are_shortened_but_not_what_stands_beside_them():
    long, changed = 40 * "a", f"{40 * 'b'}, changed"
    for commit, shown in ((long, 10 * "a"), (changed, f"{10 * 'b'}, changed"), ("db732fe", "db732fe")):
        assert source_from_run("r", "single", 0, {"environment": {"commit": commit}}).commit == shown


def test_the_contents_may_call_a_section_by_a_shorter_name():
    text = Page("title", [Section("A very long heading", [Text("words")], "one", "Short")]).html()
    assert '<a href="#one">Short</a>' in text
    assert ">A very long heading</h2>" in text


def test_a_notice_may_be_a_title_alone():
    notice = Notice("Take care")
    assert "<ul>" not in notice.html("one")
    assert notice.markdown() == "**Take care**"
    assert notice.latex("one") == r"\textbf{Take care}"
