"""Proxies that refuse bodies: of one type, or with some content. The tunnel sends them as forms, or masks them, and
connections stay open.

Clauses 7.9 and 7.19 of docs/PROTOCOL.md.
"""

from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from tests.real.servers import Server, start_haproxy
from tests.real.transfers import MIB, a_relay, client, move, noise
from tests.servlet.rig import settings
from tests.support.loops import run
from tunnel import StreamReader, StreamWriter
from tunnel_servlet.config import ListenAddress
from tunnel_servlet.web.running import RunningRelay

VIRUS = b"TUNNEL-TEST-VIRUS"
PAYLOAD = b"".join(noise(20_000, seed) + VIRUS for seed in range(20))


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def echoed(reader: StreamReader, writer: StreamWriter, payload: bytes) -> bytes:
    writer.write(payload)
    writer.write_eof()
    received = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return received


@pytest.mark.real("haproxy")
@pytest.mark.parametrize("status", [200, 403, 404])
def test_a_firewall_that_refuses_binary_bodies_passes_files_of_forms(tmp_path: Path, status: int) -> None:
    async def main() -> None:
        async with a_relay(relay), client(server.url) as attachment:
            await move(attachment, 4 * MIB)

    with (
        hold_port() as relay,
        start_haproxy(tmp_path, "haproxy-forms-only.cfg", relay=relay, status=status) as server,
    ):
        run(main())


@pytest.mark.real("haproxy")
@pytest.mark.parametrize("carrier", ["poll", "auto"])
def test_data_passes_a_filter_that_refuses_some_bodies_in_both_directions(tmp_path: Path, carrier: str) -> None:
    """The refused string travels up in requests and down in answers, in small packets and in large ones."""

    async def main(server: Server, relay: int) -> None:
        config = settings(listen=(ListenAddress("127.0.0.1", relay, False),))
        async with (
            RunningRelay(config),
            client(f"http://127.0.0.1:{relay}", "ann", carrier="link") as service,
            client(server.url, carrier=carrier, user_timeout=20) as attachment,
        ):
            await service.start_server(echo, "reports")
            quiet = await attachment.open_connection("reports", timeout=20)
            for payload in (VIRUS, PAYLOAD):
                opened = await attachment.open_connection("reports", timeout=20)
                assert await echoed(*opened, payload) == payload
            assert await echoed(*quiet, b"still here") == b"still here"
            assert attachment.refusal is None

    with hold_port() as relay, start_haproxy(tmp_path, "haproxy-content-filter.cfg", relay=relay) as server:
        run(main(server, relay))
