"""Tables say the same in Markdown, LaTeX, CSV and HTML, whatever characters are in them."""

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from rbue.errors import InvalidInput
from rbue.lab.report.page import TableBlock
from rbue.lab.report.tables import (
    Cell,
    Column,
    Table,
    csv_rows,
    csv_table,
    duration,
    latex_table,
    latex_text,
    markdown_rows,
    markdown_table,
    markdown_text,
    percent,
    points,
    whole,
)

NASTY = 'a|b_c & 50 % <script>"$x$" #1 {y} \\ ~^ `z`, *w*'
COLUMNS = (
    Column("method", "method", numeric=False),
    Column("accuracy", "accuracy", "higher", percent, points, about="share that is right"),
    Column("ece", "ECE", "lower"),
)


@pytest.fixture
def table():
    rows = (
        {"method": "single", "accuracy": Cell(0.95, std=0.001, paper=0.94), "ece": 0.05},
        {"method": NASTY, "accuracy": 0.9, "ece": Cell(None, why="was <never> run")},
        {"method": "svi", "accuracy": 0.95, "ece": Cell(0.03, paper=0.04)},
    )
    return Table(COLUMNS, rows, caption=f"caption {NASTY}")


class Reader(HTMLParser):
    """Rows of cells, each as its attributes and its text."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags, self._cell = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = [tag, dict(attributes), ""]
            self.rows[-1].append(self._cell)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell[2] += data


def test_csv_is_unrounded_and_reads_back(table):
    rows = list(csv.DictReader(io.StringIO(csv_table(table))))
    names = ["method", "accuracy", "accuracy_std", "accuracy_paper", "accuracy_difference"]
    assert list(rows[0]) == [*names, "ece", "ece_paper", "ece_difference"]
    assert [row["method"] for row in rows] == ["single", NASTY, "svi"]
    assert float(rows[0]["accuracy_difference"]) == pytest.approx(0.01)
    assert rows[0]["accuracy_std"] == "0.001"
    assert rows[1]["ece"] == ""


def test_markdown_has_as_many_cells_in_every_row(table):
    lines = markdown_table(table).splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert {len(row) for row in cells} == {3}
    assert cells[0][1].strip() == "accuracy ↑"
    assert cells[1][0].strip() == "---"
    assert cells[2][1].strip() == "**95.00 % ± 0.10 %** (paper 94.00 %, +1.00)"
    assert cells[4][2].strip() == "**0.0300** (paper 0.0400, −0.0100)"
    assert cells[3][2].strip() == "–"
    assert "<script>" not in markdown_table(table).replace("\\<", "")


def test_latex_has_no_bare_special_characters(table):
    text = latex_table(table, label="tab:a b")
    assert r"\label{tab:a-b}" in text
    assert all(rf"\{rule}" in text for rule in ("toprule", "midrule", "bottomrule"))
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 3
    for line in body:
        assert line.endswith(r"\\")
        assert len(re.findall(r"(?<!\\)&", line)) == 2
        assert not re.search(r"(?<!\\)[%#_]", line)
    assert r"\textbf{95.00~\% $\pm$ 0.10~\%}" in body[0]
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_latex_tables_stay_under_their_headings_and_can_be_read(table):
    assert latex_table(table).startswith("\\begin{table}[H]\n")
    narrow = Table(COLUMNS, [{"method": "svi", "accuracy": Cell(0.95, paper=0.94), "ece": Cell(0.03, paper=0.04)}])
    assert latex_table(narrow).count(r"\begin{tabular}") == 1
    wide = [Column("method", "method", numeric=False), *(Column(f"m{one}", f"measure {one}") for one in range(9))]
    row = {"method": "mc-droprelu:0.95"} | {one.key: Cell(0.5, std=0.1, paper=0.4) for one in wide[1:]}
    text = latex_table(Table(wide, [row]))
    panels = text.split(r"\begin{tabular}")[1:]
    assert len(panels) > 2
    assert text.count(r"\resizebox") == 1
    for panel in panels:
        shown = re.sub(r"\\footnotesize|\\[a-z]+|[{}&$]", "", panel.split(r"\midrule")[1].split(r"\\")[0])
        assert len(shown) < 115
        assert shown.strip().startswith("mc-droprelu:0.95")
    heads = re.findall(r"measure \d", text)
    assert heads == [f"measure {one}" for one in range(9)]
    alone = Table([wide[0], Column("long", "long", numeric=False)], [{"method": "x" * 300, "long": "y" * 300}])
    assert latex_table(alone).count(r"\begin{tabular}") == 1


def test_latex_columns_match_the_cells_of_every_line(table):
    for panel in latex_table(table).split(r"\begin{tabular}")[1:]:
        head, *body = panel.splitlines()
        sides = head.replace("@{ }", "")[1:-1]
        assert set(sides) == {"l", "r"}
        for line in body:
            if line.endswith(r"\\"):
                spans = line.count(r"\multicolumn{2}")
                assert len(re.findall(r"(?<!\\)&", line)) + 1 + spans == len(sides)


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("run --models", "run -{}-models"),  # an en dash in text, a single one in T1 typewriter
        ("a---b", "a-{}-{}-b"),
        ("[x]", "{[}x{]}"),  # an argument of \\ or \item
        ("“a” ‘b’", "``a'' `b'"),
        ("`a`", r"\`{}a\`{}"),
        ("§3.4", r"\S{}3.4"),
        ("日", r"\textless{}U+65E5\textgreater{}"),  # pdfTeX stops at letters that it does not have
        ("é", "é"),
    ],
)
def test_latex_text_means_what_it_says(words, written):
    assert latex_text(words) == written


@pytest.mark.parametrize("letter", list("\\{}&%$#_~^<>|±−↑↓"))
def test_every_special_character_is_escaped(letter):
    written = latex_text(f"x{letter}y")
    assert written != f"x{letter}y"
    assert written.isascii()
    assert re.fullmatch(r"x(\\[{}&%$#_]|\\text\w+\{\}|\$\\?\S+\$)y", written)


def test_html_reads_back_and_says_what_is_missing(table):
    found = Reader(TableBlock(table).html("measures"))
    head, *rows = found.rows
    assert [cell[1]["scope"] for cell in head] == ["col"] * 3
    assert all(cell[1]["aria-sort"] == "none" for cell in head)
    assert sum(tag == "button" for tag, _ in found.tags) == 3
    assert "higher is better" in head[1][2]
    assert [row[0][0] for row in rows] == ["th"] * 3
    assert rows[1][0][2] == NASTY
    assert float(rows[0][1][1]["data-number"]) == 0.95
    assert "data-missing" in rows[1][2][1]
    assert "was <never> run" in rows[1][2][2]
    assert "paper 94.00" in rows[0][1][2]
    assert not any(tag == "script" for tag, _ in found.tags)
    region = next(attributes for tag, attributes in found.tags if attributes.get("role") == "region")
    assert region["tabindex"] == "0"
    assert region["aria-labelledby"] == "measures-table-caption"


def test_the_best_is_marked_and_ties_share_it(table):
    accuracy, ece = COLUMNS[1:]
    assert [table.is_best(row, accuracy) for row in table.rows] == [True, False, True]
    assert [table.is_best(row, ece) for row in table.rows] == [False, False, True]
    written = Table(COLUMNS, [{"method": name, "ece": ece} for name, ece in (("a", 0.10001), ("b", 0.1), ("c", 0.2))])
    assert [written.is_best(row, ece) for row in written.rows] == [True, True, False], "0.1000 both"
    same = Table(COLUMNS, [{"method": "a", "ece": 0.1}, {"method": "b", "ece": 0.1}])
    assert not any(same.is_best(row, ece) for row in same.rows)
    words = Table(COLUMNS, [{"method": "a", "ece": float("nan")}, {"method": "b", "ece": 0.1}])
    assert not any(words.is_best(row, ece) for row in words.rows)


def test_a_missing_value_can_have_a_paper_value():
    cell = Cell(None, paper=0.04)
    table = Table(COLUMNS, [{"method": "a", "ece": cell}])
    assert "| – (paper 0.0400) |" in markdown_table(table)
    assert "paper 0.0400" in Reader(TableBlock(table).html("t")).rows[1][2][2]


def test_the_papers_number_has_its_own_digits():
    column = replace(COLUMNS[2], printed="{:.2f}".format)
    table = Table([COLUMNS[0], column], [{"method": "a", "ece": Cell(0.0312, paper=0.04)}])
    assert "0.0312 (paper 0.04, −0.0088)" in markdown_table(table)
    assert "paper 0.04 −0.0088" in Reader(TableBlock(table).html("t")).rows[1][1][2]


def test_wrong_tables_are_refused():
    with pytest.raises(InvalidInput, match="different keys"):
        Table((COLUMNS[0], COLUMNS[0]))
    with pytest.raises(InvalidInput, match="speed"):
        Table(COLUMNS, [{"speed": 1.0}])


def test_formats():
    assert (percent(0.5), whole(1234.0), points(-0.0123)) == ("50.00\u00a0%", "1,234", "−1.23")
    assert (percent(0.12345, digits=1, gap=" "), percent(1.0)) == ("12.3 %", "100.00\u00a0%")
    assert [duration(value) for value in (59.94, 59.96, 172_799)] == ["59.9\u00a0s", "1:00", "47:59:59"]
    assert [duration(days * 86_400, gap=" ") for days in (2, 10, 10_401)] == ["2.0 days", "10 days", "10,401 days"]


def test_tables_of_texts_are_written_as_they_are():
    assert markdown_rows(["a", "b"], [["`x`", "1"]], right=["b"]) == "| a | b |\n| --- | ---: |\n| `x` | 1 |\n"
    assert csv_rows(["a", "b"], [[None, 0.1], ["x,y", 2]]) == 'a,b\n,0.1\n"x,y",2\n'


def test_a_spreadsheet_runs_no_text():
    text = csv_rows(["=a", "b"], [["=cmd()", -1], ["@x", "+1"], ["\t=x", "-"], ["a=b", None]])
    assert text == "'=a,b\n'=cmd(),-1\n'@x,'+1\n'\t=x,'-\na=b,\n"


def test_control_characters_reach_neither_terminal_nor_tex():
    assert not set(markdown_text("a\x1b[2J\x9b\x00b")) & set("\x1b\x9b\x00")
    assert latex_text("a\x1bb") == r"a\textless{}U+001B\textgreater{}b"
