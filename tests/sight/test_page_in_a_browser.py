"""The status page in a real browser: headless Chromium, driven by Playwright.

Debian: apt-get install chromium-headless-shell; pip install playwright.
`PYTHONPATH=tests python -m tests.sight.test_page_in_a_browser docs/images` takes the docs' images.
"""

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import needs
import pytest
from conftest import LIMIT_S, Start, long

from relight.inspect.page import server as page_server
from relight.inspect.page.server import PageServer, Served

from .conftest import read_link
from .made_up import look

pytestmark = [pytest.mark.slow, pytest.mark.needs_chromium]
TOKEN = "not-to-be-guessed"
MARKUP = "<img src=x onerror=document.title='bad'><script>document.title='bad'</script>"
FAILS_ONCE = """\
import os, time
print("step 1 of", os.environ["RANK"], flush=True)
while os.environ["RANK"] == "0" or os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    time.sleep(0.05)
while not os.path.exists("fail"):
    time.sleep(0.05)
raise ValueError("bad batch")
"""
# No sandbox, as tests may run as root. The others keep it from contacting its maker's servers.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


class Job:
    """A made-up job shown on a page."""

    def __init__(self) -> None:
        self.state = look()
        self.done: list[str] = []
        actions = {"stacks": lambda: f"all ranks: in all_reduce {MARKUP}", "cancel": self.cancel}
        served = Served(lambda: dict(self.state), self.output, lambda: ("text/plain", b""), actions)
        self.server = PageServer("127.0.0.1", 0, TOKEN, served)
        self.address = f"http://127.0.0.1:{self.server.port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def output(self, rank: int, stream: str) -> str:
        return f"{stream} of {rank} {MARKUP}"

    def cancel(self) -> str:
        self.done.append("cancel")
        return "cancelled"

    def change(self, **parts: Any) -> None:
        self.state = {**self.state, **parts}

    def change_job(self, **fields: Any) -> None:
        self.change(job={**self.state["job"], **fields})

    def close(self) -> None:
        self.server.closing.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(page_server, "_EVERY_S", 0.2)
    made = Job()
    yield made
    made.close()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=needs.chromium(), args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def expect(what: Any) -> Any:
    """Return Playwright's assertions, which wait until they hold."""
    from playwright.sync_api import expect as playwrights

    playwrights.set_options(timeout=1000 * LIMIT_S)
    return playwrights(what)


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, job: Job) -> Iterator[Open]:
    """Open the page. At the end, check that it has logged no error and contacted no
    other server.
    """
    contexts: list[Any] = []
    wrong: list[str] = []

    def run(after: str = f"#token={TOKEN}", **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url)
                if not request.url.startswith(job.address) else None)  # fmt: skip
        page.goto(job.address + after)
        page.wait_for_selector("#rank-rows button")
        return page

    yield run
    for context in contexts:
        context.close()
    assert not wrong


def rows(page: Any) -> list[str]:
    """Return the ranks whose rows are in the document."""
    script = "[...document.querySelectorAll('[data-rank]')].map((each) => each.dataset.rank)"
    return list(page.evaluate(script))


def test_page_shows_live_state_across_restart(open_page: Open, job: Job) -> None:
    page = open_page()
    assert page.title() == "running · llama-7b · relight"
    assert page.locator("#link").inner_text() == "live"
    shown = page.locator("#tiles").inner_text().split("\n")
    assert shown[shown.index("Step") :][:3] == ["Step", "18345", "of 100000"]
    job.change_job(generation=4, restart=2, notice="generation 4: rank 3 raised ValueError: x")
    lane = {
        "name": "gpu-01",
        "bars": [[4, "imports", job.state["job"]["started"], None]],
        "marks": [],
    }
    job.change(lanes=[lane], failures=[{"at": 1.0, "text": f"restart 2: {MARKUP}\nTraceback"}])
    expect(page.locator("#tiles")).to_contain_text("2 of 10")
    assert page.locator("#notice").inner_text() == "generation 4: rank 3 raised ValueError: x"
    assert MARKUP in page.locator("#failures").inner_text()
    assert page.locator(".track i.p-imports").count() == 1
    job.change_job(shown_state="failed", over=True, mood="bad", notice="exit code 1: x")
    expect(page).to_have_title("failed · llama-7b · relight")
    job.server.closing.set()
    expect(page.locator("#link")).to_have_text("the job is over")


def test_chart_shows_gaps_and_escapes_metric_names(open_page: Open, job: Job) -> None:
    job.change(charts=[["steps/s", 0.0, 1.0, [1.0, None, 2.0]], [MARKUP, 0.0, 60.0, [5.0]]])
    page = open_page()
    charts = page.locator("#charts > div")
    assert charts.first.inner_text().split("\n") == ["steps/s", "2", "1 to 2 in 3.0 s"]
    assert charts.first.locator("polyline").count() == 2
    assert charts.last.locator("dt").inner_text() == MARKUP
    job.change(charts=[])
    expect(page.locator("#chart-part")).to_be_hidden()


def test_page_shows_live_state_of_real_job_across_restart(
    browser: Any, start: Start, script: Callable[[str], Path]
) -> None:
    agent = start("run", "--nproc-per-node=2", "--max-restarts=1", "--status=0", script(FAILS_ONCE))
    assert agent.stderr is not None
    page, link = browser.new_page(), read_link(agent.stderr.fileno())
    page.goto(f"{link.address}#token={link.token}")
    expect(page.locator("#tiles")).to_contain_text("0 of 1")
    expect(page.locator("#rank-rows")).to_contain_text("step 1 of 1")
    (script(FAILS_ONCE).parent / "fail").touch()
    expect(page.locator("#tiles")).to_contain_text("1 of 1")
    expect(page.locator("#failures")).to_contain_text("rank 1 raised ValueError: bad batch")
    expect(page.locator(".track b.m-failure")).to_have_count(1)
    expect(page.locator("#events")).to_contain_text("Restarting")
    page.close()


def test_thousand_ranks_can_be_searched_sorted_and_scrolled(open_page: Open, job: Job) -> None:
    """Only the visible rows are in the document."""
    ranks = [list(row) for row in job.state["ranks"]]
    ranks[700][3], ranks[700][10] = "failed (1)", MARKUP
    job.change(ranks=ranks)
    page = open_page()
    assert page.locator("#count").inner_text() == "1000 ranks"
    assert page.locator("#rank-table").get_attribute("aria-rowcount") == "1001"
    assert rows(page)[:3] == ["0", "1", "2"]
    assert len(rows(page)) < 60
    page.locator("#rank-heads button", has_text="Rank").click()
    assert rows(page)[0] == "999"
    assert page.locator("#rank-heads th").first.get_attribute("aria-sort") == "descending"
    page.evaluate("document.querySelector('#rank-scroll').scrollTop = 1e6")
    page.wait_for_selector("[data-rank='0']")
    page.locator("#states").select_option("failed")
    assert rows(page) == ["700"]
    assert page.locator("#count").inner_text() == "1 of 1000 ranks"
    assert page.locator("#rank-rows td.last").inner_text() == MARKUP
    page.locator("#states").select_option("")
    page.locator("#find").fill("gpu-03 rank:130")
    assert rows(page) == ["130"]
    page.locator("#find").fill("")
    expect(page.locator("#count")).to_have_text("1000 ranks")


def test_output_of_rank_can_be_opened_with_keyboard(open_page: Open, job: Job) -> None:
    page = open_page()
    page.locator("#find").focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.rank") == "0":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#sheet-text")).to_have_text(f"combined of 0 {MARKUP}")
    page.keyboard.press("Escape")
    assert not page.locator("#sheet").is_visible()
    assert page.evaluate("document.activeElement.dataset.rank") == "0"


def test_token_enables_stack_dumps_and_cancellation(open_page: Open, job: Job) -> None:
    """The token is removed from the address, so that no screenshot or history contains it."""
    page = open_page()
    assert page.url == job.address
    page.locator("#take-stacks").click()
    expect(page.locator("#sheet-text")).to_have_text(f"all ranks: in all_reduce {MARKUP}")
    page.locator("#sheet-close").click()
    page.locator("#cancel").click()
    page.locator("#ask-no").click()
    assert not job.done
    page.locator("#cancel").click()
    page.locator("#ask-yes").click()
    expect(page.locator("#sheet-text")).to_have_text("cancelled")
    assert job.done == ["cancel"]
    assert page.title() == "running · llama-7b · relight"  # markup isn't interpreted


def test_public_page_without_token_is_labelled_read_only(open_page: Open, job: Job) -> None:
    job.server.is_public = True
    page = open_page("")
    assert not page.locator("#actions").is_visible()
    assert page.locator("#read-only").is_visible()


def test_page_opened_without_token_prompts_for_token(browser: Any, job: Job) -> None:
    """It shows nothing about the job, and the token is removed from the address."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{job.address}#token=wrong")
    expect(page.locator("#unlock-why")).to_have_text("This is not the token of this page.")
    assert "llama" not in page.content() and not page.locator("#rank-rows").is_visible()
    assert not page.evaluate(CONTRAST)
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#rank-rows button")
    assert not page.locator("#unlock").is_visible()
    assert page.url == job.address
    page.reload()
    page.wait_for_selector("#rank-rows button")
    other = context.new_page()
    other.goto(job.address)
    expect(other.locator("#unlock")).to_be_visible()
    other.goto(f"{job.address}#token={TOKEN}")  # doesn't reload the page
    other.wait_for_selector("#rank-rows button")
    assert other.url == job.address
    context.close()


@pytest.mark.parametrize("scheme", ["light", long("dark")])
def test_page_fits_phone_screen_and_text_has_readable_contrast(
    open_page: Open, scheme: str
) -> None:
    """Nothing is wider than the screen, and text has a contrast of at least 4.5 (WCAG
    2.2, 1.4.3).
    """
    page = open_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    poor = page.evaluate(CONTRAST)
    assert not poor


CONTRAST = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const each of document.querySelectorAll("body *")) {
    const text = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !each.offsetParent || each.closest(".skip, option")) continue;
    const [a, b] = [light(parts(getComputedStyle(each).color)), light(behind(each))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${each.id || each.className || each.tagName}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(poor)];
}"""


def _take_pictures(directory: Path) -> None:
    from PIL import Image  # installed with matplotlib

    job = Job()
    with chromium() as browser:
        for name, width, height, scheme in (
            ("page-light", 1200, 1150, "light"),
            ("page-dark", 1200, 1150, "dark"),
            ("page-phone", 390, 844, "dark"),
        ):
            page = browser.new_page(viewport={"width": width, "height": height},
                                    color_scheme=scheme, timezone_id="UTC")  # fmt: skip
            page.goto(f"{job.address}#token={TOKEN}")
            page.wait_for_selector("#rank-rows button")
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            colours = shot.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            colours.save(directory / f"{name}.png", optimize=True)
    job.close()


if __name__ == "__main__":
    _take_pictures(Path(sys.argv[1]))
