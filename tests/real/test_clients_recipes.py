"""The programs in docs/recipes/ do what the pages say: each runs unchanged, except for hosts, ports, users, keys and
a few options."""

import asyncio
import getpass
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tunnel_client.sockets.runtime
from tests.client.rig import Background
from tests.real import test_clients_http as of_http
from tests.real import test_clients_nats as of_nats
from tests.real import test_clients_postgres as of_postgres
from tests.real import test_clients_redis as of_redis
from tests.real import test_clients_ssh as of_ssh
from tests.real import test_clients_tls as of_tls
from tests.real.clients_rig import LOOPBACK, PROXY_VARIABLES, Way, World
from tests.real.https_server import HttpsServer
from tests.real.servers import Server
from tests.real.transfers import CA

pytestmark = pytest.mark.real("nginx")

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Fixtures for the servers, from the other test files.
postgres, redis_server, nats_server = of_postgres.postgres, of_redis.server, of_nats.server
sshd, wss_port, https = of_ssh.sshd, of_tls.wss_port, of_http.server

Replacements = dict[str, str]


@pytest.fixture
def way(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """The path through nginx without faults. Sockets without their own runtime use it: the environment names it."""
    found = world.ways["nginx"]
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**found.environment, "SSL_CERT_FILE": CA}.items():
        monkeypatch.setenv(name, value)
    for name in ("_configured", "_default"):  # other tests of this process may have set these
        monkeypatch.setattr(tunnel_client.sockets.runtime, name, None)
    yield found
    tunnel_client.sockets.runtime.default_runtime().close()


@pytest.fixture
def run_page(way: Way, capsys: pytest.CaptureFixture[str]) -> Callable[[str, Replacements], list[str]]:
    def run(page: str, replacements: Replacements) -> list[str]:
        """Run the programs of that page; return the output of each."""
        programs = _PROGRAM.findall((RECIPES / page).read_text())
        said = []
        for program in programs:
            for old, new in {'"*.internal"': f'"{LOOPBACK}"', **replacements}.items():
                program = program.replace(old, new)
            assert ".internal" not in program
            exec(compile(program, page, "exec"), {"__name__": "__main__"})
            said.append(capsys.readouterr().out.strip())
        return said

    return run


Page = Callable[[str, Replacements], list[str]]


@pytest.mark.real("postgres", "initdb")
def test_postgresql(run_page: Page, way: Way, postgres: Server) -> None:
    host, port = f'host="{LOOPBACK}", port={postgres.port}, ssl=False', way.forward(postgres.port)
    ours = {"port=5432 ": f"port={port} ", "user=ann dbname=app": "user=postgres dbname=postgres"}
    others = {'"ann"': '"postgres"', '"app"': '"postgres"', 'host="db.internal", port=5432': host}
    said = run_page("postgresql.md", {**ours, **others})
    assert ["PostgreSQL" in words for words in said] == [True, True]


@pytest.mark.real("redis-server")
def test_redis(run_page: Page, redis_server: Server) -> None:
    said = run_page("redis.md", {"cache.internal": LOOPBACK, "6379": str(redis_server.port)})
    assert said == ["b'hello'", "b'hello'"]


@pytest.mark.real("nats-server")
def test_nats(run_page: Page, nats_server: Server) -> None:
    said = run_page("nats.md", {"broker.internal:4222": f"{LOOPBACK}:{nats_server.port}"})
    assert said == ["b'hello'"]


@pytest.mark.real("sshd", "ssh-keygen")
def test_ssh(run_page: Page, sshd: of_ssh.Sshd) -> None:
    port, directory = sshd.server.port, sshd.directory
    login = f'port={port}, username="{getpass.getuser()}", key_filename="{directory}/user_key", allow_agent=False'
    known = {"load_system_host_keys()": f'load_host_keys("{directory}/known_hosts")', 'username="ann"': login}
    said = run_page("ssh.md", {**known, '"build.internal", 22': f'"{LOOPBACK}", {port}', "build.internal": LOOPBACK})
    assert ["Linux" in words for words in said] == [True]


@pytest.mark.real("git")
def test_http(run_page: Page, way: Way, https: HttpsServer) -> None:
    said = run_page("http.md", {"127.0.0.1:1080": f"{LOOPBACK}:{way.proxy()}", "https://intranet.internal": https.url})
    assert said == ["200", "200"]


def test_websocket(run_page: Page, wss_port: int) -> None:
    where = {'"feed.internal", 443': f'"{LOOPBACK}", {wss_port}', "feed.internal": f"{LOOPBACK}:{wss_port}"}
    assert run_page("websocket.md", where) == ["hello", "hello"]


def test_tls(run_page: Page, way: Way) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK ready\r\n")
        await reader.read()
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(greet, LOOPBACK, 0, ssl=of_tls.server_context())

    with Background() as background:
        server = background.call(start())
        port = server.sockets[0].getsockname()[1]
        where = {'"mail.internal", 993': f'"{LOOPBACK}", {port}', "mail.internal": LOOPBACK}
        relay = {"https://relay.example": way.environment["TUNNEL_RELAY"], "…": way.environment["TUNNEL_TOKEN"]}
        said = run_page("tls.md", {**where, **relay, 'token="': 'proxy=None, token="'})
        background.loop.call_soon_threadsafe(server.close)
    assert len(said) == 3
    assert all("* OK ready" in words for words in said)


def test_every_page_is_in_the_list() -> None:
    pages = {path.name for path in RECIPES.glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", (RECIPES / "README.md").read_text())) == pages
