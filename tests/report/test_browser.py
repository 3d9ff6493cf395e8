"""The page as a person meets it: in headless Chromium, at the width of a laptop and of a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up import lines, store_with_pictures, study

from reprise.report.write import write_report

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
CHARTS = ("sequence", "tasks", "frontier", "tradeoff", "matrix", "panel-0", "panel-1", "panel-2")
WIDTHS = {"laptop": (1280, 900), "phone": (390, 844)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    store = store_with_pictures(folder / "store", "split-shapes")
    return write_report([lines(folder / "a.jsonl", study()), store], folder / "out")


class Opened:
    """A page, what its console said and what it asked of the network."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: Path) -> None:
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.documentElement.dataset.ready", timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers run as root, where Chromium's own sandbox does not start; the page is ours.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=WIDTHS)
def opened(request: pytest.FixtureRequest, browser: Any, page_path: Path) -> Iterator[Opened]:
    width, height = WIDTHS[request.param]
    context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
    found = Opened(context.new_page())
    found.open(page_path)
    yield found
    context.close()


def test_it_opens_without_a_complaint_or_a_request(opened: Opened, page_path: Path) -> None:
    assert opened.page.evaluate("document.documentElement.dataset.ready") == "yes"
    assert opened.said == []
    # Pictures are data addresses; Plotly's script element and everything else is in the file.
    assert [url for url in opened.asked if not url.startswith(("data:", page_path.as_uri()))] == []


def test_every_chart_is_drawn_and_nothing_is_wider_than_the_window(opened: Opened) -> None:
    drawn = opened.page.evaluate(
        "[...document.querySelectorAll('.chart')].filter(c => c.querySelector('.drawn svg.main-svg')).map(c => c.id)"
    )
    assert sorted(drawn) == sorted(f"chart-{name}" for name in CHARTS)
    assert opened.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_screenshots_are_not_blank(opened: Opened, tmp_path: Path) -> None:
    """Charts of several colours: a blank one compresses to next to nothing."""
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        opened.page.wait_for_timeout(300)
        path = tmp_path / f"{scheme}.png"
        opened.page.screenshot(path=path, full_page=True)
        assert path.stat().st_size > 100_000
    ink = opened.page.evaluate("document.querySelector('#chart-sequence .xtick text').style.fill")
    assert ink == "rgb(230, 232, 234)"  # drawn anew in the dark theme's ink
    assert opened.said == []


def test_a_heading_sorts_its_table_both_ways(opened: Opened) -> None:
    table = opened.page.locator("#table-runs-split-cifar")
    button = table.locator("th button", has_text="accuracy %").first

    def column() -> list[float]:
        cells = table.locator("tbody tr td:nth-child(4)").all_inner_texts()
        return [float(cell.split(" ")[0]) for cell in cells]

    button.click()
    assert column() == sorted(column())
    button.click()
    assert column() == sorted(column(), reverse=True)
    assert table.locator("th[aria-sort=descending]").count() == 1
    assert column()[0] == 56.2


def test_hovering_tells_the_point(opened: Opened) -> None:
    chart = opened.page.locator("#chart-sequence")
    chart.scroll_into_view_if_needed()
    # The middle of the drawn points' bounding box is no point: hover over the last point of a line itself.
    point = chart.locator("path.point").last
    box = point.bounding_box()
    assert box is not None
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
    hover = chart.locator(".hovertext")
    hover.first.wait_for(timeout=60_000)
    assert "after 3 tasks" in hover.first.text_content()


def test_a_list_changes_what_a_chart_shows(opened: Opened) -> None:
    select = opened.page.locator("#chart-matrix select")
    before = opened.page.evaluate("document.querySelector('#chart-matrix .plot').data[0].z")
    names = select.locator("option").all_inner_texts()
    assert "split-cifar — CAR · m=85" in names
    select.select_option(label="split-cifar — CAR · m=85")
    opened.page.wait_for_timeout(200)
    assert opened.page.evaluate("document.querySelector('#chart-matrix .plot').data[0].z") != before


def test_the_button_changes_the_theme_and_print_is_light(opened: Opened) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = opened.page.evaluate(ground)
    opened.page.locator("#theme").click()
    assert opened.page.evaluate(ground) != light
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.page.evaluate(ground) == light
    opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert opened.page.evaluate(ground) != light
