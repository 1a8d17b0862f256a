"""Some MiB both ways through squid, the forward proxy of many companies: open, with a password, before nginx."""

from pathlib import Path

import pytest

from loadtests.ports import hold_port
from tests.real.servers import start_nginx, start_squid
from tests.real.transfers import CA, MIB, a_relay, client, move
from tests.support.loops import run

squid = pytest.mark.real("squid")


@squid
@pytest.mark.parametrize("carrier", ["poll", "link"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_squid(scheme: str, carrier: str) -> None:
    """CONNECT lets everything pass, hence links; without TLS squid passes no upgrade on, and exchanges remain."""

    async def main() -> None:
        url = f"http://127.0.0.1:{relay}" if scheme == "http" else f"https://127.0.0.1:{tls}"
        async with (
            a_relay(relay, tls_port=tls),
            client(url, proxy=server.url, ca=CA, carrier=carrier) as attachment,
        ):
            moved = await move(attachment, 2 * MIB)
            assert moved.carrier.startswith(carrier if scheme == "https" else "poll")

    with hold_port() as relay, hold_port() as tls, start_squid("squid-open.conf") as server:
        run(main())


@squid
@pytest.mark.real("nginx")
def test_nginx_behind_squid(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_relay(relay), client(nginx.url, proxy=server.url) as attachment:
            await move(attachment, 2 * MIB)

    with (
        hold_port() as relay,
        start_nginx(tmp_path, "nginx-small-bodies.conf", relay=relay, body="100k") as nginx,
        start_squid("squid-open.conf") as server,
    ):
        run(main())
