"""What a session sends, and to whom: our credentials reach only the party that they are for."""

from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.carriers.origin import Origin, answer, optional_certificates
from tests.carriers.test_poll import CA, TLS
from tests.support.loops import run
from tunnel.carriers.dialing import Dialing


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_client_certificate_is_not_shown_to_a_proxy(scheme: str) -> None:
    async def main() -> None:
        async with Origin(answer("403 Forbidden"), tls=optional_certificates()) as proxy:
            dialing = Dialing(f"{scheme}://relay.invalid", proxy=proxy.url, ca=CA, cert=str(TLS / "client.pem"))
            async with dialing.session() as session:
                with suppress(aiohttp.ClientHttpProxyError):  # the refusal of CONNECT
                    async with session.get(dialing.url("link"), proxy=dialing.proxy):
                        pass
            assert len(proxy.heads) == 1
            assert proxy.certificates == [None]

    run(main())


def test_logins_and_proxies_of_the_environment_are_not_used_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password in ~/.netrc is for another program; a relay that was to be reached directly is."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password s3cret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))

    async def main() -> None:
        async with Origin(answer("404 Not Found")) as relay, Origin(answer("200 OK")) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//ann:s3cret@"))
            dialing = Dialing(relay.url, proxy=None)
            async with dialing.session() as session, session.get(dialing.url("link")) as response:
                assert response.status == 404
            assert proxy.heads == []
            assert [head for head in relay.heads if "authorization:" in head.lower()] == []

    run(main())
