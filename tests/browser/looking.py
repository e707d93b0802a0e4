"""What a test asks of any page: no fault that axe finds, nothing that jumps, nothing wider than the window."""

from __future__ import annotations

from typing import Any

WATCH = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts.push(entry.value);
}).observe({ type: "layout-shift", buffered: true });
"""


def faults(page: Any) -> list[str]:
    """What axe-core objects to, one sentence each."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:200]} {node['failureSummary']}" for each in found for node in each["nodes"]]


def shift(page: Any) -> float:
    """How much of the page has jumped, as browsers measure it; needs `page.add_init_script(WATCH)` before it opens."""
    return float(page.evaluate("window.shifts.reduce((sum, each) => sum + each, 0)"))


def too_wide(page: Any) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def unhurt(page: Any) -> bool:
    """Whether no text of a model was run."""
    return bool(page.evaluate("window.hacked === undefined"))
