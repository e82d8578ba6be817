"""A reader's browser: headless Chromium, driven by Selenium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

_SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 30


class Reader:
    """Opens a report and does what a person does."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, page: Path, at: str = "#/episodes") -> None:
        """Open the page, and wait for its index."""
        self.driver.get("about:blank")  # a change of the part after # alone would not load it anew
        self.driver.get(f"{page.as_uri()}{at}")
        self.wait(lambda: self.js("return document.documentElement.dataset.ready"))

    def wait(self, condition: Callable[[], Any]) -> Any:
        """What the condition gives once it holds. Raises TimeoutException when it never does."""
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.02).until(lambda _: condition())

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def press(self, *keys: str) -> None:
        """Keys, wherever the focus is."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def choose(self, facet: str, value: str) -> None:
        """A value of a filter."""
        self.driver.find_element(By.CSS_SELECTOR, f"[data-facet={facet}] option[value='{value}']").click()

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0])?.textContent.toWellFormed() ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.js(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.toWellFormed())", selector
        )
        return found

    def heading(self) -> str:
        """Of the episode that is read."""
        return self.text("#detail h2")

    def complaints(self) -> list[str]:
        """What the browser's console has had to say since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


@contextmanager
def reader(profile: Path) -> Iterator[Reader]:
    """A reader with a profile of their own. Skips, or fails in continuous integration, where there is no Chromium."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        reason = "no chromium and chromedriver: install the Debian packages chromium and chromium-driver"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    options = webdriver.ChromeOptions()
    for switch in (*_SWITCHES, f"--user-data-dir={profile}", "--window-size=1400,900"):
        options.add_argument(switch)
    options.binary_location = str(programs[0])
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    try:
        yield Reader(driver)
    finally:
        driver.quit()
