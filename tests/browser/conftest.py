"""One JupyterLab server and one browser for all browser tests, kept apart from the user's own settings."""

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
from dataclasses import dataclass
from pathlib import Path

import jupytext
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts"
CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SETTINGS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
STARTUP_SECONDS = 90


@dataclass(frozen=True)
class Lab:
    """A running server.

    Args:
      url: without a slash at the end.
      token: to log in with.
      folder: that it serves.
    """

    url: str
    token: str
    folder: Path


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    home = tmp_path_factory.mktemp("jupyter")
    folder = tmp_path_factory.mktemp("notebooks")
    for path in (ROOT / "notebooks").glob("*.py"):
        jupytext.write(jupytext.read(path), folder / f"{path.stem}.ipynb")
    env = dict(os.environ, IPYTHONDIR=str(home / "ipython"))
    for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"):
        env[f"JUPYTER_{name}"] = str(home / name.lower())
    for name in ("SETTINGS_DIR", "WORKSPACES_DIR"):
        env[f"JUPYTERLAB_{name}"] = str(home / name.lower())
    settings = home / "settings_dir" / SETTINGS
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    port = free_port()
    token = secrets.token_hex(16)
    log = home / "lab.log"
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
        "--ServerApp.password=", f"--ServerApp.root_dir={folder}", "--LabApp.extension_manager=readonly",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    with log.open("w") as out:
        server = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/api/status?token={token}", server, log)
        yield Lab(url, token, folder)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        server.kill()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(url, server, log):
    """Waits until a server answers; fails with its log if it ends, or takes too long."""
    for _ in range(STARTUP_SECONDS * 4):
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.25)
    raise AssertionError(f"the server did not answer in {STARTUP_SECONDS} s:\n{log.read_text()}")


@pytest.fixture(scope="session")
def browser():
    chromium = shutil.which("chromium")
    assert chromium, "the browser tests need Debian's package 'chromium'; `make browser` installs it"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield made
        made.close()


@pytest.fixture(params=["light", "dark"])
def theme(request):
    return request.param


class Tab:
    """A page that notes what it should not do: raise an error, or ask for anything beyond this machine."""

    def __init__(self, browser: Browser, theme: str):
        self.page: Page = browser.new_page(
            viewport={"width": 1600, "height": 1100}, color_scheme=theme, reduced_motion="reduce"
        )
        self.theme = theme
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._note_request)

    def _note_request(self, request):
        url = request.url
        local = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "file:", "about:")
        if not url.startswith(local):
            self.foreign.append(url)

    def screenshot(self, name):
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"{name}-{self.theme}.png")


@pytest.fixture
def tab(browser, theme):
    made = Tab(browser, theme)
    yield made
    made.page.close()
    assert made.errors == []
    assert made.foreign == []
