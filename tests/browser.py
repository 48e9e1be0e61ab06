"""A browser without a window, for tests of pages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretend_host import wait_until
from selenium import webdriver
from selenium.common.exceptions import (
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver.chrome.remote_connection import ChromeRemoteConnection
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

BROWSERS = ("chromium", "google-chrome", "chrome")

LOUD = ("WARNING", "SEVERE")

# These requests of a page need no network.
LOCAL = ("file:", "data:", "blob:")


class Browser:
    """One window, and what happened in it since the page was opened."""

    def __init__(self, driver: webdriver.Remote) -> None:
        self.driver = driver

    def open(self, page: Path, place: str = "", *, width: int = 1280) -> None:
        """Open a page of the disk as if anew, at a width in CSS pixels."""
        self.driver.get("about:blank")
        self.resize(width)
        for kind in ("browser", "performance"):
            self._read_log(kind)
        self.driver.get(page.as_uri() + place)
        self.wait_for(lambda: self.shown("body[data-ready]"), "a page that is drawn")

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.command("Emulation.setDeviceMetricsOverride", {**size, "mobile": False})

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        """A command of Chromium's own protocol."""
        payload = {"cmd": name, "params": parameters}
        return self.driver.execute("executeCdpCommand", payload)["value"]

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function with this body returns."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Texts of what is visible."""
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return [one.text for one in found if one.is_displayed()]

    def shown(self, selector: str) -> bool:
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return any(one.is_displayed() for one in found)

    def press(self, *keys: str) -> None:
        """Keys, to whatever has the focus."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def tab_to(
        self, wanted: Callable[[WebElement], bool], most: int = 60
    ) -> WebElement:
        """Press Tab until the wanted element has the focus."""
        for _ in range(most):
            self.press(Keys.TAB)
            if wanted(self.focused()):
                return self.focused()
        raise AssertionError(f"not reached by {most} times Tab")

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        def is_met() -> object:
            try:
                return condition()
            except StaleElementReferenceException:
                return False  # The page is being drawn anew.

        wait_until(is_met, what)

    def complaints(self) -> list[str]:
        """Warnings and errors of the console since the page was opened."""
        entries = self._read_log("browser")
        return [one["message"] for one in entries if one["level"] in LOUD]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        entries = self._read_log("performance")
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def _read_log(self, kind: str) -> list[dict[str, Any]]:
        """What came in since it was read last."""
        entries: list[dict[str, Any]]
        entries = self.driver.execute("getLog", {"type": kind})["value"]
        return entries


def find_programs() -> tuple[str, str] | None:
    """The browser and its driver; None where one of them is missing."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def start_browser(
    browser: str, driver: str, *, user: Sequence[str], folder: Path
) -> Iterator[Browser]:
    """A browser, run by an ordinary user: Chromium's sandbox is not for root.

    Args:
        user: what stands before a command of that user.
        folder: that the user may write to.
    """
    home = Path(tempfile.mkdtemp(prefix="browser-", dir=folder))
    home.chmod(0o777)
    log = home / "driver.log"
    # chromedriver prints the free port that it has chosen.
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*user, driver, "--port=0"],
            env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for flag in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(flag)
        logs = {"browser": "ALL", "performance": "ALL"}
        options.set_capability("goog:loggingPrefs", logs)
        connection = ChromeRemoteConnection(_find_address(log))
        remote = webdriver.Remote(connection, options=options)
        try:
            yield Browser(remote)
        finally:
            remote.quit()
    except WebDriverException as error:
        raise AssertionError(f"{error}\n{log.read_text()}") from error
    finally:
        process.terminate()
        process.wait()


def _find_address(log: Path) -> str:
    said = re.compile(r"started successfully on port (\d+)\.")
    wait_until(lambda: said.search(log.read_text()), f"{log}: {said.pattern}")
    return f"http://localhost:{said.findall(log.read_text())[0]}"
