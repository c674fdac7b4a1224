"""A Chromium, found or installed, and notebooks open in a JupyterLab in it; `make test` runs this first."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Playwright's own download needs no rights; Debian's package needs root, and comes first on machines made for testing.
PLAYWRIGHT = [sys.executable, "-m", "playwright", "install", "chromium"]
DEBIAN = ["sh", "-c", "apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
# Left to itself JupyterLab takes cells off the page while they are out of sight, and asks for news.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none", "autoStartDefaultKernel": True},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
# When the kernel began each cell, by its own clock, and when the first picture was there [ms since 1970].
WATCH = """window.seen = {started: []};
const look = () => {
    if (document.querySelector('.nbkit[data-frames]')) window.seen.picture = performance.timeOrigin + performance.now();
    else requestAnimationFrame(look);
};
look();"""
STARTED = """() => window.jupyterapp.shell.currentWidget.sessionContext.iopubMessage.connect((_, {header}) => {
    if (header.msg_type === 'execute_input') window.seen.started.push(Date.parse(header.date));
})"""
# Milliseconds from a key, or a move of the pointer, to the next picture in a root: the median of a row of them.
TIMED = """async ([selector, picture, events]) => {
    const it = document.querySelector(selector), root = document.querySelector(picture), times = [];
    it.scrollIntoView({block: "nearest"});
    it.focus();
    it.hasPointerCapture = () => true;
    for (const [type, init] of events) {
        const [start, before] = [performance.now(), root.dataset.frames];
        const kind = type.startsWith('key') ? KeyboardEvent : PointerEvent;
        it.dispatchEvent(new kind(type, {bubbles: true, ...init}));
        const late = () => performance.now() - start > 3000;
        while (root.dataset.frames === before && !late()) await new Promise(requestAnimationFrame);
        times.push(performance.now() - start);
        await new Promise(done => setTimeout(done, 60));
    }
    delete it.hasPointerCapture;
    return times.sort((a, b) => a - b)[times.length >> 1];
}"""


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
    if shutil.which("apt-get") and os.geteuid() == 0:
        ways.insert(0 if os.environ.get("CI") else 1, DEBIAN)
    for way in ways:
        if chromium() is None:
            subprocess.run(way, capture_output=True, timeout=600)
    return chromium()


@contextlib.contextmanager
def open_browser():
    """A Chromium driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def jupyterlab(folder, notebooks):
    """Address and token of a JupyterLab in a folder, with notebooks {name: sources of its cells} in it."""
    for name, sources in notebooks.items():
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in sources])
        nbformat.write(notebook, folder / f"{name}.ipynb")
    for name, setting in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(setting))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += ["--LabApp.expose_app_in_browser=True", f"--IdentityProvider.token={token}"]
    command += [f"--LabApp.user_settings_dir={folder / 'settings'}", f"--notebook-dir={folder}"]
    command += [f"--LabApp.workspaces_dir={folder / 'workspaces'}"]
    places = {f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("runtime", "config")}
    with (folder / "lab.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | places)
    address = f"http://127.0.0.1:{port}"
    for _ in range(120):
        try:
            urllib.request.urlopen(f"{address}/api?token={token}", timeout=5)
            break
        except OSError:
            assert server.poll() is None, (folder / "lab.log").read_text()
            time.sleep(0.5)
    yield address, token
    server.terminate()
    server.wait(timeout=30)


class Notebook:
    """A notebook open in JupyterLab, with all its cells run, or running if it is not `awaited`."""

    def __init__(self, browser, lab, name, minutes=4, awaited=True):
        address, token = lab
        self.problems, self.said = [], []
        self.page = browser.new_page(viewport={"width": 1400, "height": 1000})
        self.page.add_init_script(WATCH)
        self.page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(f"{address}/lab/tree/{name}.ipynb?token={token}&reset", timeout=120_000)
        self.page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell", timeout=60_000)
        self.page.get_by_text("| Idle").wait_for(timeout=60_000)
        self.page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        self.page.evaluate(STARTED)
        # Without braces the page would wait until all cells have run.
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        prompts = self.page.locator(".jp-NotebookPanel .jp-CodeCell .jp-InputPrompt")
        self.page.wait_for_function("() => /[*\\d]/.test(document.querySelector('.jp-InputPrompt')?.textContent)")
        deadline = time.time() + 60 * minutes
        while awaited and not all(p.strip("[]:").strip().isdigit() for p in prompts.all_inner_texts()):
            assert time.time() < deadline, f"{name}: cells still running: {prompts.all_inner_texts()}"
            assert not self.errors(), self.errors()
            self.page.wait_for_timeout(200)
        assert not self.errors(), self.errors()

    def errors(self):
        """Tracebacks of cells, what they wrote to stderr, and errors of the page, as text."""
        kinds = [f"[data-mime-type='application/vnd.jupyter.{kind}']" for kind in ("stderr", "error")]
        spoken = [text for text in self.said if "nbkit" in text or "anywidget" in text]
        return self.page.locator(", ".join(kinds)).all_inner_texts() + self.problems + spoken

    def theme(self, light):
        """Change to JupyterLab's light or dark theme."""
        change = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
        self.page.evaluate(change, f"JupyterLab {'Light' if light else 'Dark'}")
        now = "light => document.body.dataset.jpThemeLight === light"
        self.page.wait_for_function(now, arg=str(light).lower())


if __name__ == "__main__":
    if installed() is None:
        sys.stderr.write("No Chromium was found and none could be installed: the browser tests will be skipped.\n")
