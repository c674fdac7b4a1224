"""Find a Chromium for the browser tests, or install one where that can be done; `make test` runs this first."""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Playwright's own download needs no rights; Debian's package needs root, and is only for machines made for testing.
PLAYWRIGHT = [sys.executable, "-m", "playwright", "install", "chromium"]
DEBIAN = ["sh", "-c", "apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium"]


def chromium():
    """Path of a Chromium: the system's, or the one Playwright has downloaded; None without either."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            own = playwright.chromium.executable_path
        found = own if os.path.exists(own) else None  # noqa: PTH110 (a path in a string)
    return found


def installed():
    """As `chromium`, after trying to install one if there is none."""
    ways = [PLAYWRIGHT]
    if os.environ.get("CI") and shutil.which("apt-get") and os.geteuid() == 0:
        ways.insert(0, DEBIAN)
    for way in ways:
        if chromium() is None:
            subprocess.run(way, capture_output=True, timeout=600)
    return chromium()


if __name__ == "__main__":
    if installed() is None:
        sys.stderr.write("No Chromium was found and none could be installed: the browser tests will be skipped.\n")
