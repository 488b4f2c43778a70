"""A headless Chromium, driven over the W3C WebDriver protocol."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

_ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
).split()
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """A session of the browser."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client, self._at = client, f"/session/{session}"

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Send a command."""
        answer = self._client.request(method, self._at + path, json=body if method == "POST" else None).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{path}: {answer['message']}")
        return answer

    def open(self, page: Path) -> None:
        """Open a file."""
        self.call("POST", "/url", url=page.as_uri())

    def script(self, text: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.call("POST", "/execute/sync", script=text, args=list(arguments))

    def wait_for(self, condition: str) -> Any:
        """Wait until an expression is true."""
        script = (
            "const done = arguments[0]; const look = () => { const found = (() => " + condition + ")(); "
            "if (found) done(found); else setTimeout(look, 30); }; look();"
        )
        return self.call("POST", "/execute/async", script=script, args=[])

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.call("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def click(self, selector: str) -> None:
        """Click on an element."""
        element = self.call("POST", "/element", using="css selector", value=selector)[ELEMENT]
        self.call("POST", f"/element/{element}/click")

    def press(self, *keys: str) -> None:
        """Press and release keys."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", actions=[{"type": "key", "id": "keys", "actions": strokes}])

    def look(self, width: int, *, dark: bool = False, printed: bool = False) -> None:
        """Set the width of the screen, the colour scheme and the medium."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", media="print" if printed else "screen", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.script("return [document.documentElement.clientWidth, document.documentElement.scrollHeight];")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        picture = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(picture))

    def pdf(self, path: Path) -> None:
        """Print the page on A4."""
        self.devtools("Emulation.clearDeviceMetricsOverride")
        self.devtools("Emulation.setEmulatedMedia", media="")
        printed = self.devtools("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(printed["data"]))

    def console(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [entry["message"] for entry in self.call("POST", "/se/log", type="browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were requested since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.call("POST", "/se/log", type="performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


@contextmanager
def started(chromedriver: str, chromium: str, profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile."""
    driver = subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        port = next(found[1] for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            options = {"binary": chromium, "args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
            answer = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            browser = Browser(client, answer["sessionId"])
            yield browser
            client.delete(f"/session/{answer['sessionId']}")
    finally:
        driver.terminate()
        driver.wait()
        if driver.stdout is not None:
            driver.stdout.close()
