"""Transfers of some MiB both ways through squid, a forward proxy that many companies use: open to all, with a
password, and before nginx."""

import hashlib
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from tests.real.servers import start_nginx, start_squid
from tests.real.transfers import CA, MIB, a_relay, client, move
from tests.support.loops import run
from tunnel import NotAuthenticatedError

squid = pytest.mark.real("squid")
USER, PASSWORD = "me", "s3cret pass"
# The files that squid's helpers read: a hash of the password, and one of user, realm and password.
PASSWORDS = {
    "Basic": f"{USER}:$6$abcdefgh$JkUs2M4cQMIF3fzb8rSPdrGis9kyxOr8G//"
    "eP6mEBQv4DyD/cfcCAqUX6.8VAMaqE9BpPh.U5Cfz9mU/DZcFL1\n",
    "Digest": f"{USER}:tunnel test:{hashlib.md5(f'{USER}:tunnel test:{PASSWORD}'.encode()).hexdigest()}\n",
}


# The carriers that may be in use where squid forwards no upgrade, by the carrier that was asked for. Streamed answers
# must be proven first.
WITHOUT_UPGRADE = {"poll": ("poll",), "link": ("poll", "stream")}


@squid
@pytest.mark.parametrize("carrier", ["poll", "link"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_squid_lets_links_pass_only_with_tls(scheme: str, carrier: str) -> None:
    """With https://, CONNECT lets links pass. With http://, squid forwards no upgrade, so that exchanges remain."""

    async def main() -> None:
        url = f"http://127.0.0.1:{relay}" if scheme == "http" else f"https://127.0.0.1:{tls}"
        async with (
            a_relay(relay, tls_port=tls),
            client(url, proxy=server.url, ca=CA, carrier=carrier) as attachment,
        ):
            moved = await move(attachment, 2 * MIB)
            assert moved.carrier.startswith(carrier if scheme == "https" else WITHOUT_UPGRADE[carrier])

    with hold_port() as relay, hold_port() as tls, start_squid("squid-open.conf") as server:
        run(main())


@squid
@pytest.mark.real("nginx")
def test_data_arrives_through_squid_and_nginx(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_relay(relay), client(nginx.url, proxy=server.url) as attachment:
            await move(attachment, 2 * MIB)

    with (
        hold_port() as relay,
        start_nginx(tmp_path, "nginx-small-bodies.conf", relay=relay, body="100k") as nginx,
        start_squid("squid-open.conf") as server,
    ):
        run(main())


@squid
@pytest.mark.parametrize("carrier", ["poll", "link"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("asks", ["Basic", "Digest"])
def test_squid_passes_requests_only_with_its_password(asks: str, scheme: str, carrier: str) -> None:
    async def main() -> None:
        url = f"http://127.0.0.1:{relay}" if scheme == "http" else f"https://127.0.0.1:{tls}"
        there = f"127.0.0.1:{server.port}"
        proxy = f"http://{USER}:{PASSWORD.replace(' ', '%20')}@{there}"
        async with a_relay(relay, tls_port=tls):
            async with client(url, proxy=proxy, ca=CA, carrier=carrier) as attachment:
                moved = await move(attachment, MIB)
                assert moved.carrier.startswith(carrier if scheme == "https" else WITHOUT_UPGRADE[carrier])
            with pytest.raises(NotAuthenticatedError, match=rf"asks for {asks} \(tunnel test\): write http://USER"):
                await client(url, proxy=server.url, ca=CA).start()
            with pytest.raises(NotAuthenticatedError, match=rf"asks for {asks} .* did not accept user {USER}"):
                await client(url, proxy=f"http://{USER}:wrong@{there}", ca=CA).start()

    template = f"squid-{asks.lower()}.conf"
    with (
        hold_port() as relay,
        hold_port() as tls,
        start_squid(template, {"passwords": PASSWORDS[asks]}) as server,
    ):
        run(main())
