"""A browser that a test drives: Chromium, by its own protocol over a pipe."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
# The protocol wants its two ends at the descriptors 3 and 4.
LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds for an answer; the machine may be busy


class Browser:
    """One window. `problems` collects errors and whatever pages ask for that is not in a file."""

    def __init__(self, profile: Path) -> None:
        (read_commands, self._commands), (self._answers, write_answers) = os.pipe(), os.pipe()
        ends = (read_commands, write_answers)
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        launcher = [sys.executable, "-c", LAUNCHER, *map(str, ends)]
        self._process = subprocess.Popen([*launcher, *command], pass_fds=ends, stderr=subprocess.DEVNULL)
        for end in ends:
            os.close(end)
        os.set_blocking(self._answers, False)
        self._rest, self._last, self._session = b"", 0, None
        self._loaded = False
        self.problems: list[str] = []
        try:
            self._attach()
        except AssertionError:
            self.close()
            raise

    def _attach(self) -> None:
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        opened = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = opened["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def width(self, pixels: int) -> None:
        """Make the window so wide."""
        self._call("Emulation.setDeviceMetricsOverride", width=pixels, height=800, deviceScaleFactor=1, mobile=False)

    def open(self, address: str) -> None:
        """Go there, and wait until it is loaded."""
        self._loaded = False
        self._call("Page.navigate", url=address)
        self._wait(lambda: self._loaded, address)

    def run(self, script: str) -> Any:
        """The value of an expression on the page, or of the promise that it is."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """What is to be seen, as a PNG file."""
        from base64 import b64decode

        path.write_bytes(b64decode(self._call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._session = None
        with suppress(OSError, AssertionError):
            self._call("Browser.close")
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def _call(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        found: list[dict[str, Any]] = []
        self._wait(lambda: bool(found), method, found)
        if "error" in found[0]:
            raise AssertionError(f"{method}: {found[0]['error']}")
        return found[0]["result"]

    def _wait(self, done: Any, what: str, found: list[dict[str, Any]] | None = None) -> None:
        """Read messages until `done`; the answer to the last call goes to `found`."""
        until = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > until or self._process.poll() is not None:
                raise AssertionError(f"the browser does not answer: {what}")
            try:
                self._rest += os.read(self._answers, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
                continue
            *messages, self._rest = self._rest.split(b"\0")
            for message in map(json.loads, messages):
                if message.get("id") == self._last and found is not None:
                    found.append(message)
                self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            address = about["request"]["url"]
            if not address.startswith(("file:", "data:", "blob:", "about:")):
                self.problems.append(f"asks for {address}")
