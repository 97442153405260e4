"""A real browser without a screen: Debian's Chromium, driven by Selenium over its own driver."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.eventually import eventually

WIDE, PHONE = 1240, 360
"""Pixels."""
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
_WATCHES = """
window.shifts = []; window.hits = 0;
new PerformanceObserver(list => { for (const one of list.getEntries()) window.shifts.push([one.value, one.sources.map(s => s.node && (s.node.id || s.node.textContent.slice(0, 40)))]); })
  .observe({ type: "layout-shift", buffered: true });
"""
SEEN = 0.001
"""A layout shift below it, of the window's area times its height, is that of a number in its own place."""


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCHES})

    def open(self, url: str, width: int = WIDE, height: int = 1250, *, dark: bool = False) -> None:
        """Show a page in a window of this size."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(url)

    def text(self, name: str) -> str:
        """The text of the element with this id."""
        return str(self.run("return document.getElementById(arguments[0]).textContent", name))

    def shows(self, name: str, words: str, seconds: float = 30.0) -> str:
        """Wait until the element has the words; its text."""
        eventually(lambda: words in self.text(name), seconds=seconds, what=f"{words!r} in {name}", seen=lambda: self.text(name), pause=0.05)
        return self.text(name)

    def one(self, selector: str) -> WebElement:
        """The element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def complaints(self) -> list[str]:
        """What the console has, without answers that did not come."""
        return [line["message"] for line in self.driver.get_log("browser") if "ERR_CONNECTION_REFUSED" not in line["message"]]

    def shifts(self) -> list[Any]:
        """What moved in the layout by more than a number does."""
        return [shift for shift in self.run("return window.shifts") if shift[0] >= SEEN]

    def is_too_wide(self) -> bool:
        """Whether the page scrolls sideways."""
        return bool(self.run("return document.documentElement.scrollWidth > innerWidth"))

    def picture(self) -> bytes:
        """A PNG of the window."""
        return self.driver.get_screenshot_as_png()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own, closed with the block."""
    program, service = shutil.which("chromium"), shutil.which("chromedriver")
    assert program and service, "Chromium is missing: ./spark-submit.sh setup --browser --dev"
    options = Options()
    options.binary_location = program
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Its own manager, which would look for a newer driver elsewhere, is not asked.
    driver = webdriver.Chrome(options, Service(service, log_output=os.devnull))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
