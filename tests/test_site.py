"""The site that ``make docs`` builds: links, and every page in headless Chromium.

Run by ``make docs`` (links) and ``make test-docs`` (all of it); elsewhere skipped where no site is built.
"""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest

from browsing import CONTRAST, chromium_or_skip, set_screen, show

pytestmark = pytest.mark.slow
SITE = Path(__file__).parent.parent / "build" / "site"
SCREENS = [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")]


class Page(HTMLParser):
    """What a page can be linked to by, and what it links to."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.update(one for one in (found.get("id"), found.get("name") if tag == "a" else None) if one)
        self.links += [found[name] for name in ("href", "src") if found.get(name)]


@pytest.fixture(scope="module")
def pages():
    """Every page by its path."""
    found = {path: Page(path) for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts}
    if not found:
        (pytest.fail if os.environ.get("RBUE_NEEDS_BROWSER") else pytest.skip)("`make docs` builds the site")
    return found


def broken(path, link, pages):
    """Whether a link of a page leads to nothing in the site; links to other sites are left alone."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return True
    return bool(parts.fragment) and target in pages and unquote(parts.fragment) not in pages[target].ids


def test_links_and_anchors_lead_somewhere(pages):
    seen = [(path, link) for path, page in pages.items() for link in page.links]
    assert len(seen) > 1000
    assert [f"{path.relative_to(SITE)}: {link}" for path, link in seen if broken(path, link, pages)] == []


def test_a_link_that_leads_nowhere_is_found(pages):
    home = SITE / "index.html"
    for link in ("nowhere.html", "quickstart.html#nowhere", "#nowhere"):
        assert broken(home, link, pages)
    for link in ("quickstart.html#ask", "#", "https://example.org/", "_static/site.css"):
        assert not broken(home, link, pages)


def test_every_page_is_built(pages):
    """Above all those that others link to."""
    names = {str(path.relative_to(SITE).with_suffix("")) for path in pages}
    docs = SITE.parents[1] / "docs"
    assert {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")} <= names


@pytest.fixture(scope="module")
def browser(tmp_path_factory, pages):
    driver = chromium_or_skip(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


def test_pages_fit_every_screen_and_can_be_read(browser, pages):
    """No error in the console, no request elsewhere, no sideways scrolling, contrast, words for every picture."""
    from selenium.webdriver.support.ui import WebDriverWait

    problems = []
    for path in pages:
        page = show(browser, path.as_uri(), 1400)
        for width, scheme in SCREENS:
            set_screen(page, width, scheme)
            has_scheme = f"return document.documentElement.dataset.theme === '{scheme}'"
            WebDriverWait(page, 30).until(lambda page, script=has_scheme: page.execute_script(script))
            where = f"{path.relative_to(SITE)}, {width}, {scheme}"
            problems += [f"{where}: {one}" for one in _problems(page, width)]
    assert not problems, "\n".join(problems)


def _problems(page, width):
    yield from (entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE")
    requested = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    yield from (f"asks for {one}" for one in requested if not one.startswith(("file:", "data:")))
    if page.execute_script("return document.documentElement.scrollWidth") > width:
        yield "scrolls sideways"
    seen, poor = page.execute_script(CONTRAST)
    yield from poor if seen > 3 else ["has no text"]
    unseen = "return [...document.images].filter(i => !i.alt.trim() || !i.naturalWidth).map(i => i.src)"
    yield from (f"no words or no pixels: {one}" for one in page.execute_script(unseen))


def test_wide_tables_and_code_scroll_by_keyboard(browser):
    """What is wider than a phone scrolls inside its own box, which the keyboard reaches."""
    page = show(browser, (SITE / "results.html").as_uri(), 390)
    boxes = (
        "return [...document.querySelectorAll('.bd-article :is(pre, .pst-scrollable-table-container)')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.tabIndex)"
    )
    found = page.execute_script(boxes)
    assert found
    assert set(found) == {0}


def test_keyboard_reaches_content_navigation_and_search(browser):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    page = show(browser, (SITE / "quickstart.html").as_uri(), 1400)
    reached = []
    for _ in range(25):
        ActionChains(page).send_keys(Keys.TAB).perform()
        one = page.switch_to.active_element
        reached.append(f"{one.get_attribute('class')} {one.get_attribute('href')}")
    assert "#main-content" in reached[0]
    for wanted in ("tutorials/index.html", "search-button", "theme-switch-button", "#a-network-and-its-relus"):
        assert any(wanted in one for one in reached), wanted


@pytest.mark.parametrize(("words", "page"), [("balanced draws", "balanced-draws"), ("warm_up", "api/rbue")])
def test_search_finds_pages(browser, words, page):
    from selenium.webdriver.support.ui import WebDriverWait

    found = show(browser, (SITE / "search.html").as_uri() + f"?q={quote(words)}", 1400)
    links = f"return document.querySelectorAll('#search-results li a[href*=\"{page}.html\"]').length"
    assert WebDriverWait(found, 30).until(lambda browser: browser.execute_script(links))
