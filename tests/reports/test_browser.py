"""The page in headless Chromium: it renders, is silent, asks the network for nothing, and can be read by keyboard."""

from __future__ import annotations

import json
import shutil

import pytest

from sordina.accounting import Gaussian
from sordina.accounting.ledger import Ledger
from sordina.privacy import Budget
from sordina.reports import reading, rendering

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = """
--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage
"""
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="needs Debian's packages chromium and chromium-driver"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install 'sordina[dev]'")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('browser')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(tmp_path, private, plain, federation):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.create("digits", Budget(3, 1e-5))
    ledger.reserve("digits", Gaussian(5.0), what="a query").settle()
    facts = reading.report([private, plain, federation], ledger=tmp_path / "ledger.db")
    return rendering.write(facts, tmp_path / "page").as_uri()


def visit(browser, page, *, width=1440, scheme="light", media=""):
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.get(page)


def requests(browser):
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [address for address in sent if not address.startswith(("data:", "chrome:"))]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_renders_in_silence_and_asks_for_nothing(browser, page, width, scheme):
    visit(browser, page, width=width, scheme=scheme)
    assert browser.get_log("browser") == []
    assert requests(browser) == [page]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    broken = "return [...document.images].filter(image => !image.complete || !image.naturalWidth).length"
    assert browser.execute_script(broken) == 0


def test_the_log_would_show_a_request_or_an_error(browser, page, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text('<html><body><img src="other.png"><script>missing()</script></body></html>')
    visit(browser, bad.as_uri())
    assert len(requests(browser)) > 1
    assert browser.get_log("browser")


def test_every_chart_has_data_and_a_name(browser, page):
    visit(browser, page)
    charts = browser.execute_script(
        "return [...document.querySelectorAll('svg.chart')].map(chart => [chart.getAttribute('aria-label'), "
        "chart.querySelectorAll('.points .pt').length, chart.getBoundingClientRect().height])"
    )
    assert len(charts) >= 8
    for label, points, height in charts:
        assert label
        assert points > 0, label
        assert height > 60


def test_arrow_keys_and_the_mouse_tell_values(browser, page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    visit(browser, page)
    chart = browser.find_element(By.CSS_SELECTOR, "svg.chart")
    tip = chart.find_element(By.XPATH, "following-sibling::*[@role='status']")
    browser.execute_script("arguments[0].focus()", chart)
    said = []
    for _ in range(3):
        ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
        said.append(tip.text)
    assert len(set(said)) == 3
    assert all("online: step" in words and "ε spent" in words for words in said)
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert tip.text == ""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(browser).move_to_element(chart).perform()
    assert "ε spent" in tip.text


CONTRAST = """
const light = (colour) => {
  const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(value => {
    value /= 255; return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (!colour.includes("rgba")) return colour;
  }
  return "rgb(255, 255, 255)";
};
const low = [];
for (const element of document.querySelectorAll("p,h1,h2,h3,li,td,th,dt,dd,a,span,summary,text,pre,time")) {
  if (!element.textContent.trim()) continue;
  const style = getComputedStyle(element);
  const ink = light(element.tagName === "text" ? style.fill : style.color), paper = light(behind(element));
  const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  if (ratio < 4.5) low.push([element.tagName, element.textContent.slice(0, 40), ratio]);
}
return low;
"""


@pytest.mark.parametrize(("scheme", "media"), [("light", ""), ("dark", ""), ("dark", "print")])
def test_text_has_contrast(browser, page, scheme, media):
    visit(browser, page, scheme=scheme, media=media)
    assert browser.execute_script(CONTRAST) == []


def test_it_prints(browser, page):
    visit(browser, page, scheme="dark", media="print")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
