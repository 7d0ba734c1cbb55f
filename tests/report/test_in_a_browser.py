"""The page of a report in a browser: on a phone and a desk, in light and dark, by keyboard, on paper."""

from itertools import pairwise

import pytest

from report.browser import Browser, find
from report.runs import CONNECTED, IN_PROCESS, ONE_DEVICE, RANKS, cost, untimed, write_run, write_trace
from thinpipe.report.page import write_report
from thinpipe.train.settings import Settings

PAGES = ("one", "three", "odd")
LOOKS = [(360, False), (360, True), (1280, False), (1280, True)]
LONG = "a-folder-whose-name-is-longer-than-any-chart-has-room-for-" + "x" * 60


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find()
    if program is None:
        pytest.skip("no Chromium is installed here")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    three = []
    for codec, scale in (("none", 4.0), ("sort:6+2", 1.0), ("had:4", 0.5)):
        settings = Settings(connect="10.0.0.7:5555", codec=codec, grad_codec=codec, bandwidth="20mbit")
        costs = {"costs": lambda k, scale=scale: cost(k, scale=scale, seconds=scale), "seconds": scale}
        three.append(write_run(folder / codec.replace(":", "-"), settings, epochs=3, accuracy=0.3, **costs))
        write_trace(three[-1] / "trace.json", length=0.1 * scale)
    odd = [
        write_run(folder / LONG, CONNECTED, accuracy=0.41, mcc=0.2),
        write_run(folder / "begun", CONNECTED, epochs=0),
        write_run(folder / "stages", IN_PROCESS, costs=untimed),
        write_run(folder / "alone", ONE_DEVICE, costs=None),
        *(write_run(folder / f"ranks-{k}", RANKS, costs=lambda n, k=k: cost(n, scale=0.2 + k / 50)) for k in range(5)),
    ]
    (odd[1] / "trace.json").write_text("damaged")
    runs = {"one": three[2:], "three": three, "odd": odd}
    return {name: write_report(paths, folder / f"{name}.html").as_uri() for name, paths in runs.items()}


@pytest.fixture(
    params=[(name, *look) for name in PAGES for look in LOOKS], ids=lambda p: f"{p[0]}-{p[1]}-{p[2] * 'dark'}"
)
def tab(request, browser, pages):
    name, width, dark = request.param
    found = browser.open(pages[name], width=width, dark=dark)
    # What is folded up is looked at, too.
    found.value("document.querySelectorAll('details').forEach(part => part.open = true)")
    yield found
    found.close()


def test_nothing_goes_wrong_overflows_or_is_too_pale(tab):
    assert tab.events("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") == []
    asked = [each["request"]["url"] for each in tab.events("Network.requestWillBeSent")]
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
    assert tab.value("document.scrollingElement.scrollWidth <= innerWidth"), tab.value(TOO_WIDE)
    assert tab.value(CLIPPED) == []
    assert tab.value(PALE) == []


TOO_WIDE = """
[...document.querySelectorAll("body *")]
  .filter(e => !e.closest(".scroll") && e.getBoundingClientRect().right > innerWidth)
  .map(e => `${e.tagName}.${e.getAttribute("class")}`).slice(0, 5)
"""
CLIPPED = """
[...document.querySelectorAll("svg.chart")].filter(svg => svg.getClientRects().length).flatMap(svg => {
  const {width, height} = svg.viewBox.baseVal;
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBBox();
    return box.x < -0.5 || box.y < -0.5 || box.x + box.width > width + 0.5 || box.y + box.height > height + 0.5;
  }).map(text => `${svg.getAttribute("aria-labelledby")}: ${text.textContent}`);
})
"""
PALE = """
(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = parts(colour).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    if (element.matches("text.on")) return getComputedStyle(element.previousElementSibling).fill;
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return getComputedStyle(at).backgroundColor;
    }
  };
  const pale = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(element.closest("svg") ? style.fill : style.color), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (!(contrast >= 4.5)) pale.add(`${element.tagName}.${element.getAttribute("class")} ${contrast.toFixed(2)}`);
  }
  return [...pale];
})()
"""


def test_whoever_hears_the_page_is_told_what_everything_is(browser, pages):
    tab = browser.open(pages["three"])
    nodes = [node for node in tab.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    told = {}
    for node in nodes:
        told.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    for role in ("img", "image", "table", "button", "link", "region", "navigation"):
        assert all(told.get(role, [])), f"a {role} without a name"
    pictures = told.get("img", []) + told.get("image", [])
    assert len(pictures) == len(set(pictures)) == 12  # 2 of points, 3 curves, 3 rates, 1 of time, 3 steps
    assert {"main", "banner", "contentinfo", "navigation"} <= told.keys()
    levels = tab.value("[...document.querySelectorAll('h1,h2,h3')].map(head => Number(head.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    assert tab.value("document.documentElement.lang") == "en"
    ids = tab.value("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))
    tab.close()


def test_the_keyboard_reaches_everything_and_copies(browser, pages):
    tab = browser.open(pages["three"])
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    reached = []
    while len(reached) < 4:
        tab.press("Tab")
        at = tab.value("document.activeElement.className + ' ' + (document.activeElement.dataset.copies ?? '')")
        if at.startswith("copy"):
            reached.append(at)
            assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            if "command-2" in at:
                tab.press("Enter")
                tab.value("new Promise(done => setTimeout(done, 200))")
                assert tab.value("document.activeElement.textContent").startswith("copied")
                copied = tab.value("navigator.clipboard.readText()")
                assert copied == tab.value("document.getElementById('command-2').textContent")
                assert copied.split()[0] == "thinpipe"
    assert reached == [f"copy command-{name}" for name in ("0", "1", "2", "page")]
    tab.close()


def test_the_first_stop_of_the_keyboard_leads_to_the_figures(browser, pages):
    tab = browser.open(pages["one"])
    tab.press("Tab")
    assert tab.value("document.activeElement.textContent") == "Skip to the figures"
    assert tab.value("document.activeElement.getBoundingClientRect().left >= 0")
    tab.close()


def test_a_reader_points_at_a_curve_and_hides_a_run(browser, pages):
    tab = browser.open(pages["three"])
    tab.value("document.querySelector('#learning').scrollIntoView({behavior: 'instant'})")
    at = "[...document.querySelectorAll('#learning .hit')].find(e => e.getClientRects().length)"
    x, y = tab.value(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({at}.getBoundingClientRect())")
    tab.point(x, y)
    assert tab.value("document.querySelector('.tip').innerText").startswith("step 2\nnone: 1.0000\nsort:6+2: 1.0")
    shown = "[...document.querySelectorAll('.chart [data-run=\"0\"]')].some(e => e.getClientRects().length)"
    assert tab.value(shown)
    tab.value("document.querySelector('.key button').click()")
    assert not tab.value(shown) and tab.value("document.querySelector('.key button').ariaPressed") == "false"
    tab.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_paper_everything_is_there_and_nothing_is_cut_off(browser, pages, dark):
    tab = browser.open(pages["three"], width=718, dark=dark, media="print")
    assert tab.value("document.scrollingElement.scrollWidth <= innerWidth"), tab.value(TOO_WIDE)
    assert tab.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.value(
        "[...document.querySelectorAll('table.compare td')].every(e => e.getBoundingClientRect().right <= 719)"
    )
    assert tab.value(CLIPPED) == [] and tab.value(PALE) == []
    tab.close()


def test_without_scripts_everything_can_be_read(browser, pages):
    tab = browser.open("about:blank")
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.call("Page.navigate", url=pages["three"])
    browser.events.clear()
    browser.wait("Page.loadEventFired", tab.session)
    assert not tab.value("document.documentElement.classList.contains('scripted')")
    assert tab.value("document.querySelectorAll('.hit > title').length") > 100
    assert tab.value("[...document.querySelectorAll('.copy')].every(button => !button.getClientRects().length)")
    assert tab.value("[...document.querySelectorAll('pre')].every(command => command.getClientRects().length)")
    tab.close()
