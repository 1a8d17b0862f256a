"""What a refused upgrade says about other requests to the relay: how it makes them wait, and for how long (7.9)."""

import aiohttp
import pytest

from tests.carriers.origin import Origin, answer
from tests.support.loops import run
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.links.openers import OPENERS, why_not
from tunnel.carriers.links.upgrade import UpgradeRefusedError
from tunnel.exchange import Refusal

SECOND = 1_000_000

SAID = [
    ("429 Too Many Requests", "20", Refusal.BANNED, 20),
    ("429 Too Many Requests", "86400", Refusal.BANNED, 30),
    ("429 Too Many Requests", "", Refusal.BANNED, 0),
    ("503 Service Unavailable", "20", Refusal.BUSY, 2),
    ("503 Service Unavailable", "", Refusal.AWAY, 0),
    ("407 Proxy Authentication Required", "", Refusal.ASKED, 0),
    ("404 Not Found", "20", None, 0),
]


@pytest.mark.parametrize("road", OPENERS)
@pytest.mark.parametrize(("status", "retry_after", "refusal", "seconds"), SAID)
def test_a_refused_upgrade_asks_for_a_pause_as_a_refused_exchange_does(
    road: str, status: str, retry_after: str, refusal: Refusal | None, seconds: int
) -> None:
    async def main() -> None:
        told = {"Retry-After": retry_after} if retry_after else {}
        async with Origin(answer(status, b"not now", **told)) as relay:
            dialing = Dialing(relay.url, proxy=None)
            with pytest.raises(UpgradeRefusedError) as caught:
                await OPENERS[road](dialing)
        assert why_not(caught.value, dialing)[1:] == (refusal, seconds * SECOND)

    run(main())


@pytest.mark.parametrize(("status", "retry_after", "refusal", "seconds"), SAID)
def test_a_proxy_that_refuses_a_connection_to_the_relay_asks_for_the_same(
    status: str, retry_after: str, refusal: Refusal | None, seconds: int
) -> None:
    async def main() -> None:
        told = {"Retry-After": retry_after} if retry_after else {}
        async with Origin(answer(status, b"not now", **told)) as proxy:
            dialing = Dialing("https://relay.invalid", proxy=proxy.url)
            with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
                await OPENERS["link"](dialing)
        assert why_not(caught.value, dialing)[1:] == (refusal, seconds * SECOND)

    run(main())
