"""A real Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.programs import find_program

__all__ = ["Browser", "Tab", "chromium"]

_UNTIL_S = 60.0
_LOOK_S = 0.05
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-debugging-port=0",
)


class Browser:
    """The connection to a running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def read(self) -> None:
        """Hand out answers and events until the browser ends."""
        async for message in self._socket:
            found = json.loads(message.data)
            answer = self._answers.pop(found.get("id", 0), None)
            if answer is not None:
                answer.set_result(found)
            elif found.get("sessionId") in self._tabs:
                self._tabs[found["sessionId"]].on_event(found["method"], found["params"])

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(_UNTIL_S):
            found = await self._answers[number]
        assert "error" not in found, (method, found["error"])
        result: dict[str, Any] = found["result"]
        return result

    async def tab(self, url: str, width: int = 1440, height: int = 900, *, is_dark: bool = False) -> Tab:
        """Open a page of this size."""
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            await tab.call(f"{domain}.enable")
        await tab.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await tab.call("Emulation.setEmulatedMedia", features=[scheme])
        await tab.call("Page.navigate", url=url)
        await tab.until("document.readyState === 'complete'")
        return tab


class Tab:
    """One page. `said` holds what it wrote to the console, and its errors; `requests` the URLs that it asked for."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.said: list[str] = []
        self.requests: list[str] = []
        self._browser = browser
        self._session = session

    def on_event(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.said += [str(one.get("value", one.get("description"))) for one in parameters["args"]]
        elif method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.said.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **parameters)

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, (script, found["exceptionDetails"])
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        """Return when the expression is true."""
        try:
            async with asyncio.timeout(_UNTIL_S):
                while not await self.run(condition):  # noqa: ASYNC110 - the page is in another process
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            text = await self.run("document.body.innerText")
            raise AssertionError(f"never true: {condition}\nthe page shows:\n{text}\nit said: {self.said}") from None

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key, as a person does."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, " ": 32}
        known: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 * shift}
        text = {"Enter": "\r", " ": " "}.get(key)
        await self.call("Input.dispatchKeyEvent", type="keyDown", **known, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def tree(self) -> list[tuple[str, str]]:
        """Return role and name of everything that a screen reader meets."""
        nodes = (await self.call("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    async def picture(self) -> bytes:
        """Return what the page shows, as a PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Browser]:
    """Run a Chromium that keeps its files in `folder` and reaches only this machine."""
    program = find_program("chromium")
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program,
        *_FLAGS,
        f"--user-data-dir={folder}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    url = ""
    while not url and (line := await process.stderr.readline()):
        url = line.decode().partition("DevTools listening on ")[2].strip()
    assert url, "Chromium has ended"
    drain = asyncio.ensure_future(process.stderr.read())
    try:
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            browser = Browser(socket)
            reading = asyncio.ensure_future(browser.read())
            try:
                yield browser
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.gather(drain, return_exceptions=True)
