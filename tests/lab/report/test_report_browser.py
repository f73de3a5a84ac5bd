"""The page in headless Chromium: errors, sorting, alternative texts, contrast, a narrow screen, dark mode, print."""

from __future__ import annotations

import base64

import pytest

from browsing import CONTRAST, OPEN_FOLDS, chromium_or_skip, show

NARROW = 390


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = chromium_or_skip(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", params=["every block", "runs"])
def address(request, tmp_path_factory):
    """A page with every kind of block, and a report of runs."""
    text = request.getfixturevalue("run_html" if request.param == "runs" else "full_html")
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser, address):
    """Opens the page as a screen of a width, or in a colour scheme."""
    return lambda width=1200, scheme="light": show(browser, address, width, scheme)


def test_no_console_message_and_no_request(opened):
    page = opened()
    page.execute_script(OPEN_FOLDS)
    assert page.get_log("browser") == []
    assert (
        page.execute_script("return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:'))")
        == []
    )


def _column(page, place):
    script = "return [...document.querySelector('table.sortable').tBodies[0].rows].map(r => r.cells[arguments[0]])"
    cells = page.execute_script(
        script + ".map(c => 'missing' in c.dataset ? null : c.dataset.number || c.textContent)", place
    )
    return [None if cell is None else cell if place == 0 else float(cell) for cell in cells]


@pytest.mark.parametrize("address", ["every block"], indirect=True)
def test_tables_sort(opened):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    page = opened()
    headings = page.find_element(By.CSS_SELECTOR, "table.sortable").find_elements(By.CSS_SELECTOR, "thead th")
    titles = [heading.text.split()[0] for heading in headings]
    for place, key in ((0, None), (titles.index("accuracy"), Keys.ENTER), (titles.index("ECE"), Keys.SPACE)):
        button = headings[place].find_element(By.TAG_NAME, "button")
        for order in ("ascending", "descending"):
            if key is None:
                button.click()
            else:
                button.send_keys(key)
            assert headings[place].get_attribute("aria-sort") == order
            found = _column(page, place)
            there = [value for value in found if value is not None]
            assert found[: len(there)] == there  # missing cells are last
            assert there == sorted(there, reverse=order == "descending")
            said = page.execute_script("return document.getElementById('announcement').textContent")
            assert order in said
        sorts = [heading.get_attribute("aria-sort") for heading in headings]
        assert sum(one != "none" for one in sorts) == 1


@pytest.mark.parametrize("address", ["every block"], indirect=True)
def test_keyboard_reaches_the_content_first(opened):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    page = opened()
    ActionChains(page).send_keys(Keys.TAB).perform()
    link = page.switch_to.active_element
    assert link.get_attribute("class") == "skip"
    assert link.rect["x"] >= 0
    link.send_keys(Keys.ENTER)
    assert page.switch_to.active_element.get_attribute("id") == "content"


@pytest.mark.parametrize("address", ["every block"], indirect=True)
def test_sections_fold_by_keyboard_and_a_link_opens_them(opened):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    page = opened()
    folds = page.find_elements(By.CSS_SELECTOR, "details.folding")
    assert [fold.get_attribute("open") is not None for fold in (folds[0], folds[-1])] == [True, False]
    first = folds[0].find_element(By.TAG_NAME, "summary")
    for key, shown in ((Keys.ENTER, None), (Keys.SPACE, "true")):
        first.send_keys(key)
        assert folds[0].get_attribute("open") == shown
    last = folds[-1].find_element(By.TAG_NAME, "h2").get_attribute("id")
    page.find_element(By.CSS_SELECTOR, f"nav a[href='#{last}']").click()
    assert folds[-1].get_attribute("open") == "true"


@pytest.mark.parametrize("address", ["every block"], indirect=True)
def test_columns_stand_side_by_side_where_there_is_room(opened):
    script = (
        "return [...document.querySelector('.columns').children].map(c => c.getBoundingClientRect())"
        ".map(r => [r.left, r.top])"
    )
    (left, top), (right, other) = opened(width=1600).execute_script(script)
    assert right > left + 500
    assert top == other
    (left, top), (right, other) = opened(width=NARROW).execute_script(script)
    assert left == right
    assert other > top


def test_every_picture_has_words_and_is_not_empty(opened):
    page = opened()
    page.execute_script(OPEN_FOLDS)
    images = page.execute_script("return [...document.images].map(i => [i.alt, i.complete && i.naturalWidth, i.width])")
    assert images
    assert all(alt.strip() and pixels and width for alt, pixels, width in images)
    drawings = page.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(s => [s.getAttribute('aria-label'),"
        " s.getBBox().width, s.querySelectorAll('path, use, image').length, s.clientWidth])"
    )
    assert drawings
    assert all(alt.strip() and box > 50 and shapes > 10 and width > 100 for alt, box, shapes, width in drawings)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(opened, scheme):
    page = opened(scheme=scheme)
    page.execute_script(OPEN_FOLDS)
    seen, poor = page.execute_script(CONTRAST)
    assert seen > 100
    assert poor == []
    back = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(253, 252, 249)") == (scheme == "light")


@pytest.mark.parametrize("width", [320, NARROW, 1024])
def test_no_sideways_scrolling(opened, width):
    page = opened(width=width)
    page.execute_script(OPEN_FOLDS)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script("return document.documentElement.clientWidth") <= width
    if width == NARROW:
        region = "const r = document.querySelector('.scroll'); r.focus(); r.scrollLeft = 50; "
        assert page.execute_script(region + "return [document.activeElement === r, r.scrollLeft]") == [True, 50]


def test_a_comparison_with_the_paper_fits_a_common_screen(browser, tmp_path):
    """Every column of the published runs, with the paper's values below those it has."""
    from rbue.lab.report.page import Page, Section, TableBlock
    from rbue.lab.report.run_tables import MEASURES, METHOD
    from rbue.lab.report.tables import Cell, Table

    values = {"parameters": 11_173_962, "training_seconds": 254.0, "samples": 100}
    papers = {"accuracy": 0.9486, "ece": 0.03, "mean_jsd": 0.008, "mean_dis": 0.026, "training_seconds": 7200.0}
    row = {one.key: Cell(values.get(one.key, 0.9467), paper=papers.get(one.key)) for one in MEASURES}
    rows = [{**row, "method": method} for method in ("deep-ensemble:4", "mc-droprelu:0.95")]
    path = tmp_path / "page.html"
    path.write_text(Page("Wide", [Section("One", [TableBlock(Table((METHOD, *MEASURES), rows))])]).html(), "utf-8")
    page = show(browser, path.as_uri(), 1300)
    room, needed = page.execute_script(
        "const region = document.querySelector('.scroll'); return [region.clientWidth, region.scrollWidth]"
    )
    assert needed <= room


def test_links_to_sources_lead_there(opened):
    from selenium.webdriver.common.by import By

    page = opened()
    link = page.find_element(By.CSS_SELECTOR, "tbody th a")
    name = link.get_attribute("href").rpartition("#")[2]
    link.click()
    assert page.find_element(By.ID, name).is_displayed()


def test_print(opened):
    document = base64.b64decode(opened().execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert document.startswith(b"%PDF")
    assert len(document) > 20_000
