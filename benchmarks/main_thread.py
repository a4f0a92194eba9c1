"""How long a page blocks its main thread, according to Chromium's trace: in CPU time, which other processes hardly
affect."""

from __future__ import annotations

import json
from collections.abc import Callable

from playwright.sync_api import Browser, Page

_CATEGORIES = ["toplevel", "disabled-by-default-devtools.timeline"]
_TASK = ("RunTask", "ThreadControllerImpl::RunTask")


def longest_task(browser: Browser, page: Page, act: Callable[[], None], settle: int = 700) -> float:
    """The CPU milliseconds of the longest task on the page's main thread during an action.

    Args:
      browser, page: what to trace.
      act: performs the action, and waits until its result appears.
      settle: how many milliseconds to trace afterwards.
    """
    browser.start_tracing(page=page, categories=_CATEGORIES)
    try:
        act()
        page.wait_for_timeout(settle)
    finally:
        trace = browser.stop_tracing()
    events = json.loads(trace)["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [e for e in events if e.get("ph") == "X" and e["name"] in _TASK and (e["pid"], e["tid"]) in main]
    return max((task.get("tdur", task.get("dur", 0)) / 1e3 for task in tasks), default=0.0)


def heap(page: Page) -> float:
    """Megabytes of JavaScript objects on a page after garbage collection."""
    session = page.context.new_cdp_session(page)
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    used: float = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return used / 1e6
