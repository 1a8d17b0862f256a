"""Rates of users at a running relay: what /state and /metrics say, and a reload while bytes wait."""

import asyncio
import re
from dataclasses import replace

import msgspec

from tests.servlet.rig import TOKENS, relay, until
from tests.servlet.web.rig import admin, ask
from tests.support.loops import in_loop
from tests.support.relays import inside
from tests.support.targets import echo
from tunnel import attach
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule

KIB = 1 << 10
ANY = Grant(connect=(parse_rule("127.0.0.0/8:*"),))


@in_loop
async def test_a_rate_limits_one_user_and_a_reload_changes_it_while_bytes_wait() -> None:
    slow = msgspec.structs.replace(ANY, rate=64 * KIB, rates=(("127.0.0.0/8:*", 32 * KIB),))
    config = admin(exit="inline", grants=GrantTable({"ann": slow, "bob": ANY}))
    target = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = target.sockets[0].getsockname()[1]
    async with target, relay(config) as running:
        url = f"http://{running.addresses[0]}"
        async with (
            attach(url, token=TOKENS["ann"], proxy=None, linger=0.1) as ann,
            attach(url, token=TOKENS["bob"], proxy=None, linger=0.1) as bob,
        ):
            reader, writer = await ann.open_connection("127.0.0.1", port)
            payload = bytes(range(256)) * (8 * KIB)  # 2 MiB, which takes a minute at this rate
            writer.write(payload)
            switch = running.relay.host.switch
            await until(lambda: any(each.waited_ms for each in switch.rate_waits(inside(ann)._ready().now())))
            reading, writing = await bob.open_connection("127.0.0.1", port)
            writing.write(payload)
            assert await reading.readexactly(len(payload)) == payload  # all of bob's bytes, meanwhile
            writing.close()
            await writing.wait_closed()

            _, page = await ask(running, "/metrics")
            waited = re.findall(r'\ntunnel_rate_waited_seconds_total{direction="up"} (\S+)', page)
            assert float(waited[0]) > 0
            assert '"ann"' not in page
            assert "127.0.0.0" not in page
            _, text = await ask(running, "/state")
            rates = {(each["rule"], each["bytes_per_second"]) for each in msgspec.json.decode(text)["rates"]}
            assert rates == {("", 64 * KIB), ("127.0.0.0/8:*", 32 * KIB)}
            moved = ann.stats().connections[next(iter(ann.stats().connections))]
            assert moved.bytes_received < len(payload)

            running.relay.reload(replace(running.config, grants=GrantTable({"ann": ANY, "bob": ANY})))
            async with asyncio.timeout(30):
                assert await reader.readexactly(len(payload)) == payload
            writer.close()
            await writer.wait_closed()
