"""A headless Chromium for tests that open a page.

Needs Debian's chromium and chromium-driver and the Python package selenium. Where they are missing the tests skip;
with RBUE_NEEDS_BROWSER set, as in ``.ci/run``, they fail instead.
"""

from __future__ import annotations

import os
import shutil
import time

import pytest

CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const known = new Map(), backs = new Map();
const rgba = (text) => {
  if (!known.has(text)) {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    known.set(text, [r, g, b, a / 255]);
  }
  return known.get(text);
};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const luminance = (colour) => {
  const [r, g, b] = colour.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  if (!element) return rgba("Canvas");
  if (!backs.has(element))
    backs.set(element, over(rgba(getComputedStyle(element).backgroundColor), behind(element.parentElement)));
  return backs.get(element);
};
const poor = []; let seen = 0;
for (const element of document.querySelectorAll("body *")) {
  const words = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const box = element.getBoundingClientRect();
  if (!words || !box.width || !box.height || element.closest(".unseen, script")) continue;
  seen += 1;
  const style = getComputedStyle(element), background = behind(element);
  const colour = over(rgba(element.closest("svg") ? style.fill : style.color), background);
  const [high, low] = [luminance(colour), luminance(background)].sort((a, b) => b - a);
  const ratio = (high + 0.05) / (low + 0.05);
  if (ratio < 4.5) poor.push(`${element.tagName} "${element.textContent.trim().slice(0, 30)}" ${ratio.toFixed(2)}`);
}
return [seen, poor];
"""
OPEN_FOLDS = "for (const fold of document.querySelectorAll('details')) fold.open = true;"


def chromium_or_skip(folder):
    """A browser whose profile lies in a folder."""
    try:
        return _chromium(folder)
    except ImportError as error:
        if os.environ.get("RBUE_NEEDS_BROWSER"):
            pytest.fail(f"RBUE_NEEDS_BROWSER is set, but {error}")
        pytest.skip(f"the page cannot be opened: {error}")


def set_screen(browser, width, scheme):
    """Be a screen of a width, in a colour scheme."""
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def show(browser, address, width=1200, scheme="light"):
    """Open a page as a screen of a width, in a colour scheme."""
    set_screen(browser, width, scheme)
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(address)
    # On a busy machine the call above may return while a large page is still being read.
    whole = "return document.readyState === 'complete' && location.href !== 'about:blank' && !!document.body"
    give_up = time.monotonic() + 60
    while not browser.execute_script(whole):
        assert time.monotonic() < give_up, f"{address} was not read in a minute"
        time.sleep(0.1)
    return browser


def _chromium(folder):
    """A headless Chromium, or why there is none."""
    from selenium import webdriver

    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        raise ImportError("Debian's chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
