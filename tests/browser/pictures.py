"""Draws the pictures of docs/RELAY.md: `python -m tests.browser.pictures [FOLDER]`.

It runs a relay with a few users, and looks at its live page with Chromium for two minutes.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.browser.rig import Browser, Tab, chromium
from tests.servlet.rig import KEYS, LOOPBACK, TOKENS, relay, settings
from tests.servlet.web.live.rig import Opener, Streams, echo, opener, reports
from tests.servlet.web.rig import SECRET
from tests.support.targets import target
from tunnel import TunnelError, attach
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.tokens import TokenTable

__all__ = ["main"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
_STEPS = 55
_REACH = Grant(connect=(parse_rule("127.0.0.0/8:*"),), services=("reports",), listen=("reports",))


async def work(opened: Opener, streams: list[Streams], random: Random) -> None:
    """Move bytes for two minutes."""
    for step in range(_STEPS):
        for place, one in enumerate(streams):
            if random.random() < 0.6:
                await opened.echo(one, random.randrange(1, 30_000 * (place + 1)) * (1 + step % 9))
        await asyncio.sleep(2)


async def draw(tab: Tab, path: Path) -> None:
    await asyncio.to_thread(path.write_bytes, await tab.picture())
    print(path)


async def look(browser: Browser, url: str, width: int, height: int, *, is_dark: bool) -> Tab:
    tab = await browser.tab(url, width, height, is_dark=is_dark)
    await tab.type(SECRET)
    await tab.press("Enter")
    await tab.until("document.querySelectorAll('#rows tr').length > 3")
    return tab


async def main(folder: Path) -> None:
    users = {"ann": _REACH, "bob": _REACH, "exits": Grant(exit=True)}
    config = settings(
        exit="inline", admin=LOOPBACK, admin_secret=SECRET, grants=GrantTable(users), tokens=TokenTable(KEYS)
    )
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(relay(config))
        port = await stack.enter_async_context(target(echo))
        url = f"http://{running.addresses[0]}"
        names = (("ann", "laptop"), ("bob", "ci-runner"), ("ann", "desk"))
        clients = [
            await stack.enter_async_context(attach(url, token=TOKENS[user], proxy=None, linger=0.1, name=name))
            for user, name in names
        ]
        await stack.enter_async_context(reports(clients[2]))
        opened = await stack.enter_async_context(opener())
        streams = [await opened(client, port) for client in (clients[0], clients[1], clients[1], clients[0])]
        for client, host in ((clients[1], "db.internal"), (clients[1], "db.internal"), (clients[0], "169.254.169.254")):
            with suppress(TunnelError, OSError):
                await client.open_connection(host, 5432)
        browser = await stack.enter_async_context(
            chromium(Path(stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))))
        )
        admin = f"http://{running.admin}/live"
        wide = await look(browser, admin, 1440, 760, is_dark=False)
        await work(opened, streams, Random(3))
        await wide.run("document.querySelector('[data-sort=rate] button').click()")
        await wide.until("document.querySelector('[aria-sort]') !== null")
        await draw(wide, folder / "live-wide.png")
        dark = await look(browser, admin, 1440, 760, is_dark=True)
        await dark.run("document.getElementById('tab-denials').click()")
        await dark.until("document.querySelector('#rows code') !== null")
        await draw(dark, folder / "live-refusals-dark.png")
        small = await look(browser, admin, 390, 844, is_dark=True)
        await draw(small, folder / "live-small-dark.png")
        await small.run("document.querySelector('#rows button').click()")
        await small.until("document.querySelectorAll('#facts dd').length === 8")
        await draw(small, folder / "live-detail-small-dark.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS))
