"""The report in a real Chromium, at the width of a desk and of a phone."""

from __future__ import annotations

import pytest

from flows.report import write_report
from tests.tasks.synthetic import HOSTILE, write_run

pytestmark = pytest.mark.chromium
WIDTHS = (1280, 400)


@pytest.fixture(params=WIDTHS)
def page(request, browser, report):
    opened = browser.new_page(viewport={"width": request.param, "height": 900})
    opened.problems = []
    opened.on("console", lambda m: opened.problems.append(f"{m.type}: {m.text}"))
    opened.on("pageerror", lambda e: opened.problems.append(str(e)))
    opened.on("request", lambda q: opened.problems.append(q.url) if not q.url.startswith(("file:", "data:")) else None)
    opened.goto(report.as_uri())
    yield opened
    opened.close()


OVERFLOWING = """() => {
    const wide = document.documentElement.clientWidth;
    return [...document.querySelectorAll('main *, header *, nav *')].filter((e) => {
        if (e.closest('.skip') || getComputedStyle(e).position === 'absolute' || e.closest('thead')) return false;
        const box = e.getBoundingClientRect();
        return box.width > 0 && (box.right > wide + 1 || box.left < -1);
    }).map((e) => e.tagName + '.' + e.className);
}"""


def test_it_renders_without_errors_or_sideways_scrolling(page):
    for summary in page.query_selector_all("details:not([open]) > summary"):
        summary.click()
    assert page.problems == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate(OVERFLOWING) == []
    heights = {s.get_attribute("id"): s.bounding_box()["height"] for s in page.query_selector_all("section")}
    assert len(heights) == 11
    assert min(heights.values()) > 80


def test_hostile_text_is_inert_and_readable(page):
    page.fill("#graph-search", "script")
    page.keyboard.press("Enter")
    assert page.inner_text("#graph-info h3") == HOSTILE
    assert page.evaluate("window.hacked") is None
    assert page.query_selector_all("img") == []
    # Even markup that got in would not run: the policy allows only our own script.
    page.evaluate("document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.hacked = 3'>`)")
    page.evaluate("{ const s = document.createElement('script'); s.textContent = 'window.hacked = 4'; document.body.append(s); }")
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None


def pixels(page):
    """Colours of the canvas as one string, to see that a picture changed."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.evaluate("document.getElementById('graph-canvas').toDataURL()")


def test_the_graph_can_be_searched_zoomed_coloured_and_reset(page):
    first = pixels(page)
    page.click("#graph-in")
    zoomed = pixels(page)
    assert zoomed != first
    page.select_option("#graph-colour", "branch")
    seen = [zoomed, pixels(page)]
    for colour, said in (("level", "level 1"), ("coverage", "no candidate task"), ("yield", "100 % published")):
        page.select_option("#graph-colour", colour)
        seen.append(pixels(page))
        assert said in page.inner_text("#graph-legend")
    assert len(set(seen)) == len(seen)
    page.fill("#graph-search", "matrix")
    assert "Found (" in page.inner_text("#graph-info")
    page.click("#graph-info button >> nth=0")
    assert "matrix" in page.inner_text("#graph-info h3")
    assert "published of" in page.inner_text("#graph-info")
    page.fill("#graph-search", "no such thing")
    assert page.inner_text("#graph-info") == "No concept of that name."
    page.select_option("#graph-colour", "domain")
    page.click("#graph-reset")
    page.mouse.move(1, 1)
    assert pixels(page) == first


def test_a_node_can_be_clicked_and_the_picture_dragged(page):
    box = page.query_selector("#graph-canvas")
    box.scroll_into_view_if_needed()
    page.fill("#graph-search", "linear algebra")
    page.keyboard.press("Enter")
    where = box.bounding_box()
    centre = (where["x"] + where["width"] / 2, where["y"] + where["height"] / 2)
    page.click("#graph-info button >> nth=0")  # away from the seed ...
    other = page.inner_text("#graph-info h3")
    page.mouse.click(*centre)  # ... whose neighbour now lies in the centre
    assert page.inner_text("#graph-info h3") == other
    before = pixels(page)
    page.mouse.move(*centre)
    page.mouse.down()
    page.mouse.move(centre[0] + 60, centre[1] + 30, steps=3)
    page.mouse.up()
    assert pixels(page) != before


def test_the_keyboard_reaches_graph_and_traces(page):
    page.focus("#graph-canvas")
    before = pixels(page)
    page.keyboard.press("ArrowLeft")
    assert pixels(page) != before
    page.focus("#traces details summary")
    page.keyboard.press("Enter")
    opened = page.query_selector("#traces details[open]")
    assert opened.query_selector("mark.tok")
    assert "What the verifier saw" in opened.inner_text()
    assert page.get_attribute("html", "lang") == "en"


@pytest.mark.parametrize("width", WIDTHS)
def test_an_empty_run_is_readable_too(browser, tmp_path, width):
    run = write_run(tmp_path, only=[])
    run.mkdir(parents=True, exist_ok=True)
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems = []
    page.on("console", lambda m: problems.append(m.text))
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.goto(write_report(run).as_uri())
    assert problems == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.query_selector_all("svg, canvas") == [], "no empty chart"
    assert len(page.query_selector_all(".notrun")) >= 11
    page.close()
