"""Using the status page with a keyboard and a screen reader, in headless Chromium."""

from typing import Any

from .test_page_in_a_browser import Job, Open, browser, expect, job, open_page, pytestmark

__all__ = ["browser", "job", "open_page", "pytestmark"]

FOCUSED = """() => {
  const each = document.activeElement, style = getComputedStyle(each);
  const name = each.getAttribute("aria-label") || each.labels?.[0]?.textContent || each.textContent;
  return [each.dataset.rank || each.id || each.tagName, name.trim() !== "",
          style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2];
}"""


def walk(page: Any) -> list[list[Any]]:
    """Press Tab from the top of the page to its end, and return the elements that had the focus."""
    found = []
    for _ in range(60):
        page.keyboard.press("Tab")
        found.append(page.evaluate(FOCUSED))
        if found[-1][0] == "BODY":
            return found[:-1]
    raise AssertionError(found)


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.dataset.rank"))


def test_tab_key_reaches_all_controls_and_focus_is_visible(open_page: Open) -> None:
    """A single step passes over 1,000 ranks."""
    found = walk(open_page())
    ids = [each[0] for each in found]
    assert ids[:3] == ["A", "take-stacks", "cancel"]  # the first one skips to the ranks
    assert ids.count("0") == 1 and "1" not in ids
    assert ids[ids.index("0") + 1 :] == ["event-internal", "event-find", "event-scroll"]
    assert [each for each in found if not all(each)] == []


def test_arrow_keys_move_between_ranks(open_page: Open, job: Job) -> None:
    page = open_page()
    page.locator("[data-rank='0']").focus()
    for key, rank in (
        ("ArrowDown", "1"), ("ArrowUp", "0"), ("ArrowUp", "0"), ("End", "999"),
        ("ArrowDown", "999"), ("ArrowUp", "998"), ("Home", "0"),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert focused(page) == rank
        assert page.evaluate(IN_VIEW)
    page.keyboard.press("PageDown")
    assert 2 < int(focused(page)) < 40
    page.keyboard.press("End")
    page.keyboard.press("Tab")  # back to the rank that had the focus
    page.keyboard.press("Shift+Tab")
    assert focused(page) == "999"
    page.keyboard.press("Enter")
    expect(page.locator("#sheet-title")).to_have_text("Output of rank 999")


def test_focused_rank_keeps_focus_when_page_updates(open_page: Open, job: Job) -> None:
    """The element stays the same, as a screen reader would otherwise read out a new one every
    second.
    """
    page = open_page()
    page.locator("[data-rank='2']").focus()
    page.evaluate("window.before = document.activeElement")
    rows = [[*row[:6], 77777, *row[7:]] for row in job.state["ranks"]]
    job.change(ranks=rows)
    expect(page.locator("#rank-rows tr").nth(3)).to_contain_text("77777")
    assert page.evaluate("window.before === document.activeElement")


def test_last_known_values_are_marked_for_screen_readers(open_page: Open, job: Job) -> None:
    page = open_page()
    assert not page.locator("#old-values").is_visible()
    rows = [[*row[:11], 1_767_266_000.0] for row in job.state["ranks"]]
    job.change(ranks=rows)
    expect(page.locator("#old-values")).to_be_visible()
    text = page.locator("#rank-rows tr").nth(1).locator("td.old").first
    expect(text).to_have_text("18345 (last known)")
    assert text.get_attribute("title").startswith("last known, at ")


def test_page_respects_reduced_motion_setting(open_page: Open) -> None:
    moving = "getComputedStyle(document.querySelector('#link'), '::before').animationName"
    assert open_page(reduced_motion="reduce").evaluate(moving) == "none"
    assert open_page(reduced_motion="no-preference").evaluate(moving) == "beat"


IN_VIEW = """() => {
  const at = document.activeElement.getBoundingClientRect();
  const box = document.querySelector("#rank-scroll").getBoundingClientRect();
  const head = document.querySelector("#rank-heads").getBoundingClientRect();
  return at.top >= head.bottom - 1 && at.bottom <= box.bottom + 1;
}"""
