"""Clients of `tunnel proxy` whose CONNECT is refused show their users the reason phrase, so it must say why."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from tests.real.clients_rig import LOOPBACK, WAIT_S, Way, environment

REASON = "refused the connection"
_BUILD_S = 150.0  # the first build compiles the standard library of Go
GO = """
package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
)

func main() {
	// Go's own reading of https_proxy leaves this machine out.
	proxy, _ := url.Parse(os.Getenv("https_proxy"))
	client := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	_, err := client.Get(os.Args[1])
	fmt.Println(err)
}
"""
NODE = """
const proxy = new URL(process.env.https_proxy);
const target = new URL(process.argv[1]);
const request = require("http").request({
  host: proxy.hostname, port: proxy.port, method: "CONNECT", path: target.host,
});
request.on("connect", (response) => {
  console.log(response.statusCode, response.statusMessage);
  process.exit();
});
request.end();
"""
PYTHON = "import sys, urllib.request\ntry: urllib.request.urlopen(sys.argv[1])\nexcept OSError as error: print(error)"


def said(way: Way, *command: str) -> str:
    """Return the output of the client when its target refuses."""
    with hold_port() as closed:
        done = subprocess.run(
            [*command, f"https://{LOOPBACK}:{closed}/"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**environment(way), "https_proxy": f"http://{LOOPBACK}:{way.proxy()}"},
            timeout=WAIT_S,
            check=False,
        )
    return done.stdout + done.stderr


@pytest.mark.real("nginx", "go")
def test_go(way: Way, tmp_path: Path) -> None:
    (tmp_path / "main.go").write_text(GO)
    subprocess.run(["go", "build", "-o", "client", "main.go"], cwd=tmp_path, check=True, timeout=_BUILD_S)
    assert REASON in said(way, str(tmp_path / "client"))


@pytest.mark.real("nginx", "node")
def test_node(way: Way) -> None:
    assert REASON in said(way, "node", "-e", NODE)


@pytest.mark.real("nginx", "curl")
def test_curl_shows_the_head(way: Way) -> None:
    assert REASON in said(way, "curl", "--disable", "--silent", "--verbose", "--output", "/dev/null")


@pytest.mark.real("nginx")
def test_urllib(way: Way) -> None:
    assert REASON in said(way, sys.executable, "-c", PYTHON)
