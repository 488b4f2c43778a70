"""The pages of `amc report` in a real browser. Needs Chromium, its driver and vl-convert-python; no server.

AMC_TEST_PICTURES=FOLDER keeps the screenshots and the PDFs.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from amc_agents.operations.report import report_page
from tests.operations.page.conftest import HOSTILE
from tests.operations.page.conftest import make_run as make_run
from tests.operations.report.conftest import bench_folder as bench_folder
from tests.operations.report.conftest import tune_folder as tune_folder
from tests.operations.report.test_folders import dataset, scored_dataset
from tests.operations.report.test_rollout_page import canary_in
from tests.service.browser import Browser, started

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="Chromium and chromedriver are not installed"),
    pytest.mark.skipif(find_spec("vl_convert") is None, reason="vl-convert-python is not installed (extra: report)"),
]
WIDTHS = {"phone": 390, "desktop": 1280}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started(str(CHROMEDRIVER), str(CHROMIUM), tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def pictures(tmp_path):
    kept = os.environ.get("AMC_TEST_PICTURES")
    folder = Path(kept) if kept else tmp_path / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def pages(tmp_path, bench_folder, tune_folder, make_run):
    """Kind -> its page, each of hostile texts."""
    make_run(HOSTILE).save(tmp_path / "run")
    folders = {
        "run": tmp_path / "run",
        "bench": bench_folder(text=HOSTILE),
        "tune": tune_folder(HOSTILE),
        "data": dataset(tmp_path / "data", HOSTILE),
        "scores": scored_dataset(tmp_path / "scored"),
        "canary": canary_in(tmp_path / "canary"),
    }
    make_run(HOSTILE).save(folders["bench"])
    for kind, folder in folders.items():
        (tmp_path / f"{kind}.html").write_text(report_page(folder))
    return {kind: tmp_path / f"{kind}.html" for kind in folders}


def opened(browser: Browser, page: Path) -> None:
    browser.look(WIDTHS["desktop"])
    browser.console(), browser.requests()
    browser.open(page)
    browser.wait_for("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg'))")


def test_pages_draw_their_charts_without_an_error_or_a_request(browser, pages, pictures):
    for kind, page in pages.items():
        opened(browser, page)
        assert browser.console() == []
        assert {url.split(":")[0] for url in browser.requests()} <= {"file", "data"}
        assert browser.script("return document.querySelectorAll('img, iframe').length") == 0
        n_charts = browser.script("return document.querySelectorAll('.chart').length")
        assert (n_charts > 0) == (kind != "run")
        drawn = browser.script(
            "return [...document.querySelectorAll('.plot svg')].map((s) => s.querySelectorAll('.mark-symbol path, "
            ".mark-rect path').length)"
        )
        assert all(marks > 0 for marks in drawn)
        browser.pdf(pictures / f"{kind}.pdf")


def test_pages_fit_a_phone_and_follow_the_colour_scheme(browser, pages, pictures):
    for kind, page in pages.items():
        for screen, width in WIDTHS.items():
            backgrounds = set()
            for dark in (False, True):
                browser.look(width, dark=dark)
                browser.open(page)
                browser.wait_for("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg'))")
                assert browser.script("return document.documentElement.scrollWidth") <= width, (kind, screen)
                backgrounds.add(browser.script("return getComputedStyle(document.body).backgroundColor"))
                browser.screenshot(pictures / f"{kind}-{screen}-{'dark' if dark else 'light'}.png")
            assert len(backgrounds) == 2


def test_paper_is_always_light(browser, pages):
    browser.look(WIDTHS["desktop"], dark=True, printed=True)
    browser.open(pages["run"])
    assert browser.script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("kind", ["run", "bench"])
def test_a_click_on_a_node_shows_its_step(browser, pages, kind):
    opened(browser, pages[kind])
    panel = "return document.querySelector('.panel').innerText"
    assert "Particle 1, step 4" in browser.script(panel), "the end of the answer is chosen first"
    browser.click(".node[data-b='1'][data-s='2'] .dot")
    shown = browser.script(panel)
    assert "Particle 1, step 2" in shown
    assert "dropped at step 2" in shown
    assert "value 0.1" in shown
    assert "saw b2</script><img src=x onerror=alert(1)>" in shown
    assert browser.console() == []


def test_the_keyboard_reaches_every_line(browser, pages):
    opened(browser, pages["run"])
    focus = "return document.activeElement.getAttribute('aria-label')"
    # One stop in the order of tabs; inside, arrows move.
    assert browser.script("return document.querySelectorAll('.node[tabindex=\"0\"]').length") == 1
    browser.script("document.querySelector('.node[tabindex=\"0\"]').focus()")
    assert browser.script(focus).startswith("particle 1, step 4")
    left, right, down, up = "\ue012", "\ue014", "\ue015", "\ue013"
    browser.press(left, left)
    assert browser.script(focus).startswith("particle 2, step 2")
    browser.press(up)
    assert browser.script(focus).startswith("particle 1, step 2")
    browser.press(up)
    assert browser.script(focus).startswith("particle 0, step 2")
    browser.press(left, left)
    assert browser.script(focus) == "The task"
    assert "Do it." in browser.script("return document.querySelector('.panel').innerText")
    browser.press(right)
    assert "step 1" in browser.script(focus)
    browser.press(down)
    assert "step 1" in browser.script(focus)


def test_a_chart_explains_a_point(browser, pages):
    opened(browser, pages["bench"])
    browser.script("document.querySelector('.chart').scrollIntoView()")
    place = browser.script(
        "const box = document.querySelector('.plot .mark-symbol path').getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]"
    )
    for x in (place[0] - 40, place[0]):
        browser.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=place[1])
    assert "score" in browser.wait_for("document.querySelector('.tip')?.innerText")
