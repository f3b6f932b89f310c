"""The report and the board in a real browser, opened from ``file://``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from test_report import attacked, example

from bakeoff.arena.report import board

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]

CONTRASTS = """() => {
  const linear = (x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((x) => linear(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = luminance(getComputedStyle(document.documentElement).backgroundColor);
  const picks = ["h1", "td", ".muted", "figcaption", ".verdict", "small", "dt", "thead button", ".held"];
  const contrast = (query) => {
    const front = luminance(getComputedStyle(document.querySelector(query)).color);
    return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  };
  return [back, ...picks.map(contrast)];
}"""
"""Luminance of the page, then the contrast ratio (WCAG 2) of each kind of text on it."""


@dataclass
class Visit:
    """An open page and all that it said and asked for."""

    page: Any
    address: str
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Nothing logged, no dialog, nothing requested but the file itself and data inside it."""
        assert self.said == []
        assert [url for url in self.asked if not url.startswith("data:")] == [self.address]
        assert self.page.evaluate("window.hacked") is None


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None and not os.environ.get("CI"):
        pytest.skip("no Chromium on this machine; set CI=1 to make this a failure")
    assert program is not None, "CI needs Chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        opened.close()


def visit(browser: Any, file: Path, width: int = 1200, scheme: str = "light") -> Visit:
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    found = Visit(page, file.as_uri())
    page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (found.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: found.asked.append(request.url))
    page.goto(found.address)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a figure, a hostile report, and a board of three methods."""
    out = tmp_path_factory.mktemp("pages")
    (out / "figures").mkdir()
    drawing = "<svg xmlns='http://www.w3.org/2000/svg' width='90' height='60'><rect width='90' height='60'/></svg>"
    (out / "figures" / "own.svg").write_text(drawing)
    (out / "figures" / "ok.svg").write_text(drawing)
    (out / "hostile.html").write_text(attacked().to_html(out))
    report = replace(example(), figures={"own.svg": "A figure of the bout"})
    report.save(out)
    other = example(method="zebra", use="from bakeoff.decide import Zebra", job="Finds stripes").to_json()
    other["rows"][1]["versus"]["verdict"], other["floor_beaten"] = "worse", False
    other["rows"][0]["cost"]["cpu_s"] = 3.0
    third = example(method="middle").to_json()
    third["rows"][0]["cost"] = {}
    (out / "board.html").write_text(board([report, other, third], ["report.html"]))
    return out


def first_column(page: Any, table: str = "table") -> list[str]:
    cells = page.locator(f"{table} >> nth=0").locator("tbody:not([hidden]) > tr:first-child > th")
    return [text.split("\n")[0] for text in cells.all_inner_texts()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", ["report", "hostile", "board"])
def test_pages_open_quietly_and_fit(browser: Any, folder: Path, name: str, width: int, scheme: str) -> None:
    seen = visit(browser, folder / f"{name}.html", width, scheme)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    images = seen.page.evaluate(
        "[...document.images].map(i => [i.naturalWidth, i.alt, getComputedStyle(i).filter !== 'none'])"
    )
    assert len(images) == {"report": 3, "hostile": 3, "board": 0}[name]
    assert all(pixels > 0 and alt for pixels, alt, _ in images)
    assert [inverted for *_, inverted in images[:2]] == [scheme == "dark"] * len(images[:2])  # the arena's own plots
    assert not any(inverted for *_, inverted in images[2:])
    seen.check()


def test_the_table_scrolls_inside_its_container_on_a_phone(browser: Any, folder: Path) -> None:
    seen = visit(browser, folder / "report.html", 400)
    box = seen.page.locator(".scroll").first
    assert box.evaluate("e => e.scrollWidth > e.clientWidth && getComputedStyle(e).overflowX") == "auto"


def test_colours_follow_the_scheme_and_keep_contrast(browser: Any, folder: Path) -> None:
    backgrounds = set()
    for scheme in ("light", "dark"):
        page = visit(browser, folder / "report.html", scheme=scheme).page
        background, *contrasts = page.evaluate(CONTRASTS)
        backgrounds.add(round(background, 1))
        assert min(contrasts) >= 4.5
    assert backgrounds == {0.0, 1.0}


def test_a_click_sorts_and_says_so(browser: Any, folder: Path) -> None:
    seen = visit(browser, folder / "report.html")
    before = first_column(seen.page)
    header = seen.page.locator("table >> nth=0").locator("thead th").nth(6)
    assert header.get_attribute("aria-sort") == "none"
    header.locator("button").click()
    rising = first_column(seen.page)
    assert header.get_attribute("aria-sort") == "ascending"
    assert rising == list(reversed(before))  # cost falls with the position in the example
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert first_column(seen.page) == before
    assert seen.page.locator("th[aria-sort=descending], th[aria-sort=ascending]").count() == 1
    seen.check()


def test_the_keyboard_sorts_and_missing_numbers_stay_last(browser: Any, folder: Path) -> None:
    seen = visit(browser, folder / "report.html")
    header = seen.page.locator("table >> nth=0").locator("thead th").nth(2)
    header.locator("button").focus()
    for state in ("ascending", "descending"):
        seen.page.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") == state
        assert first_column(seen.page)[-1] == "ours"  # the method has no difference to itself
    seen.check()


def test_every_column_of_the_board_sorts(browser: Any, folder: Path) -> None:
    seen = visit(browser, folder / "board.html")
    heads = seen.page.locator("table.board thead th")
    orders = set()
    for column in range(heads.count()):
        for _ in range(2):
            heads.nth(column).locator("button").click()
            assert heads.nth(column).get_attribute("aria-sort") in ("ascending", "descending")
            names = first_column(seen.page, "table.board")
            assert sorted(names) == ["middle", "ours", "zebra"]
            orders.add(tuple(names))
            assert seen.page.locator("table.board tbody > tr.more").count() == 3
    assert len(orders) >= 4
    heads.nth(9).locator("button").click()
    assert first_column(seen.page, "table.board") == ["zebra", "ours", "middle"]  # CPU: 3 s, about 40 s, not known
    seen.check()


def test_the_board_filters_by_text_room_and_verdict(browser: Any, folder: Path) -> None:
    seen = visit(browser, folder / "board.html")
    page, count = seen.page, seen.page.locator("output")
    assert count.inner_text() == "3 of 3 methods"
    page.get_by_label("Text").fill("STRIPES")
    assert first_column(page, "table.board") == ["zebra"]
    assert count.inner_text() == "1 of 3 methods"
    page.get_by_label("Text").fill("")
    page.get_by_label("Room").select_option("explain")
    assert first_column(page, "table.board") == ["ours", "middle"]
    page.get_by_label("Room").select_option("")
    page.get_by_label("Verdict").select_option("worse")
    assert first_column(page, "table.board") == ["zebra"]
    page.get_by_label("Verdict").select_option("floor")
    assert first_column(page, "table.board") == ["zebra"]
    page.get_by_label("Room").select_option("explain")
    assert first_column(page, "table.board") == []
    seen.check()


def test_claims_open_on_the_board_and_its_link_leads_to_the_report(browser: Any, folder: Path) -> None:
    seen = visit(browser, folder / "board.html")
    claim = seen.page.get_by_text("It beats plain.").first
    assert not claim.is_visible()
    seen.page.locator("summary").first.click()
    assert claim.is_visible()
    seen.check()
    seen.page.get_by_role("link", name="ours").click()
    assert seen.page.url == (folder / "report.html").as_uri()
    assert seen.page.locator("h1").inner_text() == "A title"


def test_the_policy_stops_a_script_that_the_page_did_not_bring(browser: Any, folder: Path, tmp_path: Path) -> None:
    page = (folder / "report.html").read_text().replace("</body>", "<script>window.hacked = 1</script></body>")
    (tmp_path / "injected.html").write_text(page)
    seen = visit(browser, tmp_path / "injected.html")
    assert seen.page.evaluate("window.hacked") is None
    assert "Content Security Policy" in " ".join(seen.said)
