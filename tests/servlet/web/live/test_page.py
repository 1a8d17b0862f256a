"""The files of the live page, and what a browser may do with them."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest

from tests.servlet.web.live.rig import inline
from tests.support.loops import in_loop

ASSETS = files("tunnel_servlet.web.live") / "assets"
FILES = {
    "/live": ("live.html", "text/html"),
    "/live/live.css": ("live.css", "text/css"),
    "/live/live.js": ("live.js", "text/javascript"),
    "/live/lines.js": ("lines.js", "text/javascript"),
    "/live/tables.js": ("tables.js", "text/javascript"),
    "/live/icon.svg": ("icon.svg", "image/svg+xml"),
}


@in_loop
async def test_the_files_come_without_a_secret_and_under_a_strict_policy() -> None:
    async with inline() as running, aiohttp.ClientSession() as session:
        for path, (name, kind) in FILES.items():
            async with session.get(f"http://{running.admin}{path}") as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                assert await answer.read() == (ASSETS / name).read_bytes()
                policy = answer.headers["Content-Security-Policy"].split("; ")
                assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
                assert {"require-trusted-types-for 'script'", "trusted-types 'none'"} <= set(policy)
                assert "unsafe" not in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
        async with session.get(f"http://{running.admin}/live/../admin.py") as answer:
            assert answer.status == 404


def test_each_file_is_served_and_no_other() -> None:
    assert {name for name, _ in FILES.values()} == {one.name for one in ASSETS.iterdir()}


@pytest.mark.parametrize("name", [name for name, _ in FILES.values()])
def test_no_file_needs_the_internet_or_makes_html_of_texts(name: str) -> None:
    text = (ASSETS / name).read_text()
    addresses = set(re.findall(r"https?://[^\s'\"]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "style="):
        assert word not in text
    assert not re.search(r"\son[a-z]+=", text)


@pytest.mark.real("node")
@pytest.mark.parametrize(
    ("user", "has_end"),
    [("ann", True), ("sso:ann", True), ("sso:relay:x", True), ("relay:exit", False), ("relay:public", False)],
)
def test_what_belongs_to_users_has_a_button_that_ends_it_and_what_belongs_to_the_relay_has_none(
    tmp_path: Path, user: str, has_end: bool
) -> None:
    for name in ("tables", "lines"):
        text = (ASSETS / f"{name}.js").read_text().replace("/live/lines.js", "./lines.mjs")
        (tmp_path / f"{name}.mjs").write_text(text)
    row = {"user": user, "id": "a1", "name": "laptop", "connections": 1, "attachments": 1}
    script = f"""import {{ TABLES }} from './tables.mjs';
const row = {json.dumps(row)};
console.log(JSON.stringify(['attachments', 'users'].map((name) => TABLES[name].end(row) !== null)));"""
    (tmp_path / "main.mjs").write_text(script)
    done = subprocess.run(["node", "main.mjs"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert json.loads(done.stdout) == [has_end, has_end]


PAGE = "http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": PAGE}, 200),
        ({"Origin": PAGE, "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Origin": "http://localhost:{port}"}, 403),  # another origin for a browser
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"}, 403),
    ],
    ids=str,
)
@in_loop
async def test_two_users_only_its_own_page_is_answered(headers: dict[str, str], status: int) -> None:
    async with inline() as running, aiohttp.ClientSession() as session:
        assert running.admin is not None
        sent = {name: value.format(port=running.admin.port) for name, value in headers.items()}
        secret = {"Tunnel-Admin": running.relay.admin_secret}
        for path in ("/connections", "/live"):
            async with session.get(f"http://{running.admin}{path}", headers=sent | secret) as answer:
                assert answer.status == status, path
        async with session.delete(f"http://{running.admin}/users?name=bob", headers=sent | secret) as answer:
            assert answer.status == (404 if status == 200 else 403)
        async with session.get(f"http://{running.admin}/connections", headers=sent) as answer:
            assert answer.status == 403  # without the secret, in any case
