"""HTTP clients through `tunnel proxy`, to a TLS server beyond the relay: httpx, curl, git."""

import asyncio
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.real.clients_rig import LOOPBACK, WAIT_S, Way, environment, run_command
from tests.real.https_server import LARGE, HttpsServer, https_server
from tests.real.transfers import CA, MIB, noise
from tests.support.loops import run

pytestmark = pytest.mark.real("nginx", "curl", "git")

UPLOAD = noise(MIB, seed=7)
_GIT = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsServer]:
    """A server with a repository `project.git` that contains a large file."""
    projects = tmp_path_factory.mktemp("projects")
    work = tmp_path_factory.mktemp("work")
    (work / "large").write_bytes(LARGE)
    bare = str(projects / "project.git")
    git(work, "init", "--quiet")
    git(work, "add", "large")
    git(work, "commit", "--quiet", "--message", "Something large")
    git(work, "clone", "--quiet", "--bare", str(work), bare)
    git(work, "-C", bare, "config", "http.receivepack", "true")
    with https_server(projects) as running:
        yield running


def git(directory: Path, *words: str) -> None:
    subprocess.run(["git", *_GIT, *words], cwd=directory, env=git_environment(), check=True, timeout=WAIT_S)


def git_environment() -> dict[str, str]:
    """Keep git from reading this machine's configuration and from asking for a password."""
    nowhere = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0"}
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **nowhere}


def proxy_url(way: Way, scheme: str = "http") -> str:
    return f"{scheme}://{LOOPBACK}:{way.proxy()}"


def fetch(way: Way, server: HttpsServer, command: list[str], **variables: str) -> None:
    """Run a command that fetches something large; the trouble begins when half of it was written."""
    env = {**environment(way), **variables}
    with (
        server.stopping_halfway(),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as process,
    ):
        try:
            assert server.halfway.wait(WAIT_S), "no request arrived"
            with way.trouble():
                server.go_on()
                said, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, said.decode(errors="replace")


def test_httpx(way: Way, server: HttpsServer) -> None:
    """All requests use one connection, which outlives the trouble."""
    before = server.connections
    with httpx.Client(proxy=proxy_url(way), verify=tls(), timeout=WAIT_S, trust_env=False) as http:
        assert http.get(f"{server.url}/hello").text == "/hello\n"
        with way.trouble():
            assert http.get(f"{server.url}/large").content == LARGE
        assert http.post(f"{server.url}/echo", content=UPLOAD).content == UPLOAD
    assert server.connections == before + 1


def test_httpx_async(way: Way, server: HttpsServer) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(proxy=proxy_url(way), verify=tls(), timeout=WAIT_S, trust_env=False) as http:
            with way.trouble():
                answers = await asyncio.gather(*(http.get(f"{server.url}/{number}") for number in range(10)))
            assert [answer.text for answer in answers] == [f"/{number}\n" for number in range(10)]
            assert (await http.post(f"{server.url}/echo", content=UPLOAD)).content == UPLOAD

    run(main())


def tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CA)


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
def test_curl(way: Way, server: HttpsServer, scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "large"
    words = ["curl", "--disable", "--silent", "--show-error", "--fail", "--cacert", CA]
    words += ["--proxy", proxy_url(way, scheme)]
    fetch(way, server, [*words, "--output", str(file), f"{server.url}/large"])
    assert file.read_bytes() == LARGE
    if scheme == "http":
        assert run_command(way, [*words, "--data", "x=1", f"{server.url}/echo"]) == "x=1"


def test_git(way: Way, server: HttpsServer, tmp_path: Path) -> None:
    """Clone, commit and push; a second clone has the commit."""
    url = f"{server.url}/git/project.git"
    variables = {**git_environment(), "https_proxy": proxy_url(way), "GIT_SSL_CAINFO": CA}
    clone = tmp_path / "clone"
    fetch(way, server, ["git", *_GIT, "clone", "--quiet", url, str(clone)], **variables)
    assert (clone / "large").read_bytes() == LARGE
    (clone / "small").write_text(way.name)
    for words in (["add", "small"], ["commit", "--quiet", "--message", "Small"], ["push", "--quiet"]):
        run_command(way, ["git", *_GIT, *words], directory=clone, **variables)
    said = subprocess.run(
        ["git", "-C", str(server.projects / "project.git"), "show", "main:small"], capture_output=True, check=True
    )
    assert said.stdout == way.name.encode()
