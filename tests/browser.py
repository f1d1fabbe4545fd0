"""Opens a page in headless Chromium and tells what it asked for, said and looks like.

By Chromium's own protocol (https://chromedevtools.github.io/devtools-protocol/) over two pipes.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Whatever the page may ask for beside its own file is refused, and told.
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--hide-scrollbars", "--disable-dev-shm-usage",
)  # fmt: skip

# The browser reads descriptor 3 and writes 4.
AT_3_AND_4 = """
import fcntl, os, sys
above = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 5) for word in sys.argv[1:3]]
for own, descriptor in zip((3, 4), above):
    os.dup2(descriptor, own)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """The browser's path, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A tab, spoken to in the browser's protocol."""

    def __init__(self, sent: int, received: int) -> None:
        self._sent, self._received, self._buffer = sent, received, b""
        self._last, self._session = 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a method and returns its result; what the browser tells meanwhile is kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._sent, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Opens a file in a window so many CSS pixels wide, and waits until it is there whole."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 500,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def requests(self) -> list[str]:
        """The addresses that the page has asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def said(self) -> list[Any]:
        """What stands in the console."""
        told = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [event["params"] for event in self.events if event.get("method") in told]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Saves the page, or its first screen, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._received, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def open_browser(program: str, profile: Path) -> Iterator[Page]:
    """Starts a browser with a profile of its own, and ends it."""
    to_browser, from_browser = os.pipe(), os.pipe()

    ours = (to_browser[0], from_browser[1])
    process = subprocess.Popen(
        [sys.executable, "-c", AT_3_AND_4, *map(str, ours), program, *FLAGS,
         f"--user-data-dir={profile}"],
        pass_fds=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        os.close(to_browser[0])
        os.close(from_browser[1])
        page = Page(to_browser[1], from_browser[0])
        yield page
    finally:
        process.terminate()
        process.wait(30)
        os.close(to_browser[1])
        os.close(from_browser[0])
