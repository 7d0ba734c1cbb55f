"""A headless Chromium, spoken to through two pipes: each message is JSON with a NUL behind it.

::

    test  --fd 3-->  {"id": 1, "method": "Page.navigate", ...}\\0  -->  Chromium
          <--fd 4--  {"id": 1, "result": {...}}\\0                 <--
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
PATIENCE = 40


def find():
    """Finds a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser, for as many pages as there are."""

    def __init__(self, program, profile):
        own_read, its_write = os.pipe()
        its_read, own_write = os.pipe()
        # Above 4, so that neither of its two ends is overwritten by the other.
        high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (its_read, its_write)]
        actions = [
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            *((os.POSIX_SPAWN_DUP2, each, number) for each, number in zip(high, (3, 4), strict=True)),
        ]
        words = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._pid = os.posix_spawn(program, words, os.environ, file_actions=actions, setsid=True)
        for each in (its_read, its_write, *high):
            os.close(each)
        self._read, self._write = own_read, own_write
        self._rest, self._number, self.events = b"", 0, []

    def call(self, method, session=None, **params):
        """Asks for something, and returns the answer; what happens meanwhile is in ``events``."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next(method)
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self.events.append(said)

    def wait(self, event, session):
        """Waits for something to have happened on a page."""
        while not any(each.get("method") == event and each.get("sessionId") == session for each in self.events):
            self.events.append(self._next(event))

    def _next(self, awaited):
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"Chromium said nothing of {awaited} for {PATIENCE} s"
            more = os.read(self._read, 1 << 20)
            assert more, f"Chromium ended before {awaited}"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, url, *, width=1280, height=900, dark=False, media=""):
        """Opens a page, and returns it once it is there."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility", "DOM"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        page.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired", session)
        return page

    def close(self):
        """Ends the browser, by force if it does not go."""
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            os.killpg(self._pid, signal.SIGKILL)
        os.close(self._write)
        os.close(self._read)
        os.waitpid(self._pid, 0)


class Tab:
    """A page in the browser."""

    def __init__(self, browser, session, target):
        self._browser, self.session, self._target = browser, session, target

    def call(self, method, **params):
        return self._browser.call(method, self.session, **params)

    def value(self, expression):
        """Evaluates JavaScript, a promise too, and returns its value."""
        said = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def press(self, key):
        """Presses a key."""
        text = {"Enter": "\r"}.get(key, "")
        code = {"Enter": 13, "Tab": 9}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def point(self, x, y):
        """Moves the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, height=None):
        """Takes a picture of the window, or of so many pixels from the top."""
        clip = {}
        if height is not None:
            width = self.value("innerWidth")
            clip = {
                "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
                "captureBeyondViewport": True,
            }
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"])

    def events(self, *methods):
        """Lists what happened here since the page was opened."""
        found = [each for each in self._browser.events if each.get("sessionId") == self.session]
        return [each["params"] for each in found if each.get("method") in methods]

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)
