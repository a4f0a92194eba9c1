"""A JupyterLab server and a browser, isolated from the user's settings: for the browser tests and the benchmarks."""

from __future__ import annotations

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
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
}
STARTUP_SECONDS = 90
KERNEL_IDLE = "() => jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"


@dataclass(frozen=True)
class Lab:
    """A running server.

    Args:
      url: without a trailing slash.
      token: to log in with.
      folder: the folder it serves.
    """

    url: str
    token: str
    folder: Path

    def open(self, page: Page, notebook: str) -> None:
        """Opens a notebook in a separate workspace and waits for its kernel."""
        page.goto(f"{self.url}/lab/workspaces/{uuid.uuid4().hex}/tree/{notebook}?token={self.token}&reset")
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
        page.wait_for_function(KERNEL_IDLE, timeout=60_000)


@contextlib.contextmanager
def running_lab(home: Path, folder: Path, env: dict[str, str] | None = None) -> Iterator[Lab]:
    """A server on a free port.

    Args:
      home: an empty folder for its settings and its log.
      folder: the folder of notebooks to serve.
      env: environment variables for it and its kernels, in addition to this process's.
    """
    env = {**os.environ, **(env or {}), "IPYTHONDIR": str(home / "ipython")}
    for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"):
        env[f"JUPYTER_{name}"] = str(home / name.lower())
    for name in ("SETTINGS_DIR", "WORKSPACES_DIR"):
        env[f"JUPYTERLAB_{name}"] = str(home / name.lower())
    for name, values in SETTINGS.items():
        settings = home / "settings_dir" / f"{name}.jupyterlab-settings"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(values))
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


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a server answers; fails with its log if it exits or takes too long."""
    for _ in range(STARTUP_SECONDS * 4):
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.25)
    raise AssertionError(f"the server did not answer in {STARTUP_SECONDS} s:\n{log.read_text()}")


@contextlib.contextmanager
def running_browser(*flags: str) -> Iterator[Browser]:
    """Headless Chromium, with additional flags."""
    chromium = shutil.which("chromium")
    assert chromium, "this needs Debian's package 'chromium'; `make browser` installs it"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium, args=[*CHROMIUM_FLAGS, *flags])
        yield made
        made.close()


_ASK = """async (code) => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const done = kernel.requestExecute({ code, store_history: false });
    let text = "";
    done.onIOPub = (message) => { if (message.header.msg_type === "stream") text += message.content.text; };
    await done.done;
    return text.trim();
}"""


def ask_kernel(page: Page, expression: str) -> str:
    """The value of an expression in the kernel of the open notebook, run as a cell."""
    answer: str = page.evaluate(_ASK, f"print({expression})")
    return answer


def kernel_gets_to(page: Page, expression: str, value: str) -> None:
    """Waits until an expression in the kernel has a value: what a widget sends may arrive after what is asked later,
    since it waits while the kernel is busy."""
    for _ in range(100):
        if (now := ask_kernel(page, expression)) == value:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{expression} stays {now}, and does not become {value}")


class Tab:
    """A page that records what must not happen: errors, and requests to other machines."""

    def __init__(self, browser: Browser, theme: str = "light"):
        self.page: Page = browser.new_page(
            viewport={"width": 1600, "height": 1100}, color_scheme=theme, reduced_motion="reduce"
        )
        self.theme = theme
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(f"{error}\n{error.stack}"))
        self.page.on("request", self._note_request)

    def _note_request(self, request: Any) -> None:
        url = request.url
        local = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "file:", "about:")
        if not url.startswith(local):
            self.foreign.append(url)
