"""A real browser: the system's Chromium, driven by Playwright (which would download its own, and needs not)."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
LEFT_OUT = ("gpu", "quic", "background-networking", "component-update", "sync")
QUIET = ["no-first-run", *(f"disable-{part}" for part in LEFT_OUT)]


def executable() -> str:
    """The browser's path; without one the test is skipped, or fails where LLAMA_JAX_BROWSER=required."""
    for path in filter(None, map(shutil.which, NAMES)):
        return path
    if os.environ.get("LLAMA_JAX_BROWSER") == "required":
        pytest.fail("No Chromium: `apt-get install chromium`.")
    pytest.skip("no Chromium: `apt-get install chromium`")


@pytest.fixture(scope="package")
def chromium():
    """A headless browser, empty each time these tests are come to; a page is `chromium.new_page()`.

    Playwright keeps an event loop running in this thread, beside which no other test could run one: so it ends with the
    last test here, or before a worker goes on with another package's.
    """
    from playwright.sync_api import sync_playwright

    path = executable()
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] * (os.geteuid() == 0)  # Chromium refuses to start as root with one
        browser = playwright.chromium.launch(executable_path=path, args=[f"--{name}" for name in QUIET] + sandbox)
        yield browser
        browser.close()
