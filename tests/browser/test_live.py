"""The live page in a real Chromium: what it shows, from a keyboard and to a screen reader, small, wide and dark.

Names of users are hostile, and other pages want the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser.rig import Browser, Tab, chromium
from tests.servlet.web.live.rig import attached, echo, inline, opener
from tests.servlet.web.rig import SECRET
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import DeniedError, ResetError
from tunnel_servlet.web.running import RunningRelay

pytestmark = pytest.mark.real("chromium")

ROWS = "document.querySelectorAll('#rows tr').length"
WIDE = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


async def look(browser: Browser, running: RunningRelay, **options: Any) -> Tab:
    """Open the page and type the secret."""
    tab = await browser.tab(f"http://{running.admin}/live", **options)
    await tab.type(SECRET)
    await tab.press("Enter")
    await tab.until("!document.getElementById('view').hidden")
    return tab


async def text_of(tab: Tab, selector: str) -> str:
    return str(await tab.run(f"document.querySelector({json.dumps(selector)}).textContent"))


async def click(tab: Tab, selector: str) -> None:
    await tab.run(f"document.querySelector({json.dumps(selector)}).click()")


async def focus(tab: Tab) -> str:
    """Return id, name or text of what has the focus."""
    script = "(one => one.getAttribute('aria-label') || one.id || one.textContent)(document.activeElement)"
    return str(await tab.run(script))


async def tab_to(tab: Tab, name: str) -> None:
    """Press Tab until the thing of this name has the focus."""
    for _ in range(40):
        if (await focus(tab)).startswith(name):
            return
        await tab.press("Tab")
    raise AssertionError(f"Tab never reaches {name}")


@in_loop
async def test_an_operator_looks_sorts_filters_and_ends_a_connection_with_the_keyboard(tmp_path: Path) -> None:
    async with (
        target(echo) as port,
        inline() as running,
        attached(running, "ann", name="laptop") as ann,
        attached(running, "bob", name="desk") as bob,
        opener() as opened,
        chromium(tmp_path) as browser,
    ):
        mine = await opened(ann, port, 1000)
        for size in (90_000, 5):
            await opened(bob, port, size)
        tab = await browser.tab(f"http://{running.admin}/live")
        assert await focus(tab) == "secret"
        await tab.type("wrong")
        await tab.press("Enter")
        await tab.until("document.getElementById('why').textContent.includes('must hold the secret')")
        await tab.type(SECRET)
        await tab.press("Enter")
        await tab.until(f"{ROWS} === 3 && document.getElementById('state').textContent === 'Live'")
        assert "3 open connections" in await text_of(tab, "#summary")
        await tab_to(tab, "Down")
        await tab.press("Enter")
        first = "document.querySelector('#rows tr').textContent"
        await tab.until(f"{first}.includes('87.9 KiB') && document.querySelector('[aria-sort]') !== null")
        assert await tab.run("document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"
        await tab.press("Enter")
        await tab.until(f"{first}.includes('5 B')")
        await tab.run("document.getElementById('find').focus()")
        await tab.type("LAPTOP")
        await tab.until(f"{ROWS} === 1")
        assert await text_of(tab, "#count") == "1 to 1 of 1, of 3 in all"
        await tab_to(tab, "Connection c")
        await tab.press("Enter")
        await tab.until("document.querySelectorAll('#facts dd').length === 8")
        facts = await text_of(tab, "#facts")
        assert "laptop of ann, client by " in facts
        assert f"127.0.0.1:{port}" in facts
        await tab_to(tab, "detail-end")
        await tab.press("Enter")
        assert await focus(tab) == "confirm-no"  # the harmless answer
        await tab_to(tab, "confirm-yes")
        await tab.press("Enter")
        with pytest.raises(ResetError, match="the operator of the relay ended this connection"):
            await mine[0].read()
        await tab.until("!document.getElementById('detail-gone').hidden")
        assert "1 connection, 0 attachments" in await text_of(tab, "#said")
        await tab.press("Escape")
        await tab.until("document.getElementById('none').textContent === 'None of them matches.'")
        admin = f"http://{running.admin}"
        assert [url for url in tab.requests if not url.startswith(admin)] == []
        assert [url for url in tab.requests if SECRET in url] == []
        assert [said for said in tab.said if "403" not in said] == []  # the wrong secret is reported, and no more


@in_loop
async def test_tabs_obey_arrows_and_everything_has_a_name(tmp_path: Path) -> None:
    async with (
        target(echo) as port,
        inline() as running,
        attached(running, "ann", name="laptop") as ann,
        opener() as opened,
        chromium(tmp_path) as browser,
    ):
        await opened(ann, port)
        with pytest.raises(DeniedError):
            await ann.open_connection("db.internal", 5432)
        tab = await look(browser, running)
        await tab.until(f"{ROWS} === 1 && document.querySelectorAll('#lines svg[aria-label*=most]').length >= 4")
        tree = await tab.tree()
        images = [name for role, name in tree if role in ("image", "img")]
        assert [name.split(":")[0] for name in images] == [
            "Throughput",
            "Connections",
            "Openings",
            "Loss",
            "Round trips",
        ]
        for role in ("button", "tab", "textbox", "searchbox", "columnheader"):
            assert [name for found, name in tree if found == role and not name] == [], role
        assert ("button", f"Connection c1-{await suffix(tab)} of ann to 127.0.0.1:{port}") in tree
        await tab.run("document.getElementById('tab-connections').focus()")
        for key, chosen, shown in (
            ("ArrowRight", "attachments", "laptop"),
            ("ArrowRight", "services", ""),
            ("ArrowRight", "users", "ann"),
            ("End", "denials", "this line would allow it: connect = ["),
            ("ArrowRight", "connections", "laptop"),
            ("ArrowLeft", "denials", "db.internal:5432"),
        ):
            await tab.press(key)
            assert await focus(tab) == f"tab-{chosen}"
            await tab.until(f"document.getElementById('panel').textContent.includes({json.dumps(shown)})")
            selected = await tab.run("document.querySelector('[aria-selected=true]').dataset.table")
            assert selected == chosen
        assert await tab.run("document.querySelector('#rows code').textContent.startsWith('connect = [')")
        await click(tab, "#tab-attachments")
        await tab.until(f"{ROWS} === 2")
        ends = "[...document.querySelectorAll('#rows button')].filter(one => !one.hidden).length"
        assert await tab.run(ends) == 1  # the exit in the relay's process cannot be ended
        assert tab.said == []


async def suffix(tab: Tab) -> str:
    return (await text_of(tab, "#rows button")).partition("-")[2]


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("is_dark", [False, True])
@in_loop
async def test_it_fits_small_and_wide_light_and_dark(width: int, is_dark: bool, tmp_path: Path) -> None:
    async with (
        target(echo) as port,
        inline() as running,
        attached(running, "ann", name="x" * 64) as ann,
        opener() as opened,
        chromium(tmp_path) as browser,
    ):
        await opened(ann, port)
        with pytest.raises(DeniedError):
            await ann.open_connection("y" * 200, 5432)
        tab = await look(browser, running, width=width, height=844, is_dark=is_dark)
        for table in ("connections", "attachments", "services", "users", "denials"):
            await click(tab, f"#tab-{table}")
            await tab.until(f"{ROWS} > 0 || !document.getElementById('none').hidden")
            assert await tab.run(WIDE), table
        await click(tab, "#tab-connections")
        await tab.until(f"{ROWS} === 1")
        await click(tab, "#rows button")
        await tab.until("document.querySelectorAll('#facts dd').length === 8")
        assert await tab.run(
            "(() => { const box = document.getElementById('detail').getBoundingClientRect();"
            " return box.left >= 0 && box.right <= innerWidth; })()"
        )
        light = await tab.run(
            "(() => { const of = (one) => getComputedStyle(document.body)[one].match(/[0-9]+/g).slice(0, 3)"
            ".reduce((sum, one) => sum + Number(one), 0); return of('color') > of('backgroundColor'); })()"
        )
        assert light is is_dark


HOSTILE = (
    "<img src=x onerror=window.hit=1>",
    "<script>window.hit=1</script>",
    "\"><svg onload='window.hit=1'>",
    "javascript:window.hit=1",
    "${window.hit=1}",
    "\u202e\u2066ann\x00\x1b[2J",
)


@in_loop
async def test_two_users_hostile_names_are_text(tmp_path: Path) -> None:
    async with target(echo) as port, inline() as running, chromium(tmp_path) as browser:
        tab = await look(browser, running)
        for name in HOSTILE:
            async with attached(running, "ann", name=name) as ann, opener() as opened:
                await opened(ann, port)
                with pytest.raises(DeniedError):
                    await ann.open_connection("<b>evil</b>.example", 80)
                for table in ("connections", "attachments", "denials"):
                    await click(tab, f"#tab-{table}")
                    wanted = "<b>evil</b>.example:80" if table == "denials" else name
                    cells = "[...document.querySelectorAll('#rows td')]"
                    await tab.until(f"{cells}.some(one => one.textContent === {json.dumps(wanted)})")
                await click(tab, "#tab-connections")
                await tab.until("document.querySelector('#rows button') !== null")
                await click(tab, "#rows button")
                await tab.until(f"document.getElementById('facts').textContent.includes({json.dumps(name)})")
                await click(tab, "#detail-end")
                await tab.press("Escape")
                await click(tab, "#detail-close")
            await tab.until(f"{ROWS} === 0")
        assert await tab.run("window.hit === undefined && !document.querySelector('main img, main script, #rows b')")
        assert tab.said == []


PAGE = """<!doctype html><title>elsewhere</title><script>
const relay = new URL(location).searchParams.get('relay');
const secret = new URL(location).searchParams.get('secret');
const attempt = async (path, options) => {
  try {
    const answer = await fetch(relay + path, options);
    return answer.type + answer.status;
  } catch {
    return 'failed';
  }
};
window.found = (async () => {
  const headers = { 'Tunnel-Admin': secret };
  const seen = [
    await attempt('/connections', { headers }),
    await attempt('/events', { headers }),
    await attempt('/users?name=ann', { method: 'DELETE', headers }),
    await attempt('/users?name=ann', { method: 'DELETE' }),
    await attempt('/drain', { method: 'POST', mode: 'no-cors' }),
  ];
  const frame = document.createElement('iframe');
  frame.src = relay + '/live';
  const loaded = new Promise((done) => { frame.onload = done; });
  document.body.append(frame);
  await loaded;
  seen.push(frame.contentDocument === null);
  return seen;
})();
</script>"""


@asynccontextmanager
async def page_elsewhere() -> AsyncIterator[int]:
    """Serve a page of another user of this machine."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # a browser may open a connection that it does not need
            await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}{PAGE}".encode())

    async with target(serve) as port:
        yield port


@in_loop
async def test_two_users_a_page_elsewhere_reads_and_ends_nothing_even_with_the_secret(tmp_path: Path) -> None:
    async with (
        page_elsewhere() as port,
        inline() as running,
        attached(running, "ann"),
        chromium(tmp_path) as browser,
    ):
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{port}/?relay=http://{running.admin}&secret={SECRET}"
            tab = await browser.tab(url)
            assert await tab.run("window.found") == ["failed", "failed", "failed", "failed", "opaque0", True]
        assert not running.relay.is_draining
        assert running.relay.host.switch.stats().counters.attachments_kicked == 0


@in_loop
async def test_a_page_asks_again_when_the_secret_is_replaced_and_keeps_it_no_longer(tmp_path: Path) -> None:
    async with inline() as running, chromium(tmp_path) as browser:
        tab = await look(browser, running)
        await tab.call("Page.reload")
        await tab.until("document.readyState === 'complete' && !document.getElementById('view').hidden")
        assert await tab.run("Object.values(sessionStorage)") == [SECRET]
        assert await tab.run("localStorage.length + document.cookie.length") == 0
        running.relay.reload(replace(running.config, admin_secret="x" * 43))
        await tab.until("!document.getElementById('login').hidden && document.getElementById('view').hidden")
        assert await tab.run("sessionStorage.length") == 0
        assert "must hold the secret" in await text_of(tab, "#why")


@in_loop
async def test_a_page_says_that_the_relay_is_gone(tmp_path: Path) -> None:
    async with chromium(tmp_path) as browser:
        async with inline() as running:
            tab = await look(browser, running)
            await tab.until("document.getElementById('state').textContent === 'Live'")
        await tab.until("document.getElementById('state').textContent === 'No relay answers; trying again'")


@in_loop
async def test_a_paused_page_asks_for_nothing_until_it_goes_on(tmp_path: Path) -> None:
    async with inline() as running, chromium(tmp_path) as browser:
        tab = await look(browser, running)
        await click(tab, "#pause")
        await tab.until("document.getElementById('state').textContent === 'Paused'")
        asked = len(tab.requests)
        await click(tab, "#tab-users")
        await tab.until("document.getElementById('caption').textContent === 'Users'")
        assert tab.requests[asked:] == []
        await click(tab, "#pause")
        await tab.until("document.getElementById('state').textContent === 'Live'")
        assert "table=users" in tab.requests[asked]
