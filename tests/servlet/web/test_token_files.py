"""The files about the use of tokens: what a crash, a race and a damaged file leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadtests.harness.tree import python_path
from tests.support.disk import recorded_syncs
from tunnel_servlet.web.tokens.files import TokenUseFiles, endpoint_hash, use_folder

EXPIRES = "2027-01-15T08:00:00Z"
EXPIRES_S = 1_800_000_000
DAY_S = 86_400
ENDPOINTS = [bytes([number]) * 16 for number in range(8)]


def test_the_folder_is_beside_the_tokens_file() -> None:
    assert use_folder(Path("/etc/tunnel/relay.tokens.toml")) == Path("/etc/tunnel/relay.tokens.use")


def test_relays_that_share_the_files_agree_on_the_endpoint_that_has_a_token(tmp_path: Path) -> None:
    relays = [TokenUseFiles(tmp_path / "use") for _ in ENDPOINTS]
    # A draft is named after its process, so threads of one process must not share one; the relay asks once at a time.
    script = (
        "import sys; from pathlib import Path; from tunnel_servlet.web.tokens.files import TokenUseFiles; input(); "
        f"print(TokenUseFiles(Path(sys.argv[1])).use('11111111', bytes.fromhex(sys.argv[2]), {EXPIRES!r}))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "use"), endpoint.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        for endpoint in ENDPOINTS[:4]
    ]
    with ThreadPoolExecutor(len(started)) as pool:  # all of them get their line at about the same moment
        owners = {out.strip() for out, _ in pool.map(lambda process: process.communicate("\n"), started)}
    assert len(owners) == 1
    assert owners < {endpoint_hash(endpoint) for endpoint in ENDPOINTS[:4]}
    assert relays[0].use("11111111", ENDPOINTS[7], EXPIRES) in owners
    assert [path.name for path in (tmp_path / "use").iterdir()] == ["11111111.used"]


def test_a_token_is_used_on_disk_when_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = recorded_syncs(monkeypatch)
    files = TokenUseFiles(tmp_path / "use")
    assert files.use("11111111", ENDPOINTS[0], EXPIRES) == endpoint_hash(ENDPOINTS[0])
    assert synced[-1] == str(tmp_path / "use")
    assert any("11111111.used" in name for name in synced[:-1])
    assert files.is_used("11111111")
    assert not files.is_used("22222222")
    assert (tmp_path / "use" / "11111111.used").stat().st_mode & 0o777 == 0o600
    assert ENDPOINTS[0].hex() not in (tmp_path / "use" / "11111111.used").read_text()


def test_a_process_that_is_killed_while_it_stores_leaves_whole_files(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tunnel_servlet.web.tokens.files import TokenUseFiles\n"
        "files, number = TokenUseFiles(Path(sys.argv[1])), 0\n"
        "while True:\n"
        "    number += 1\n"
        "    files.store_last_uses({f'{key:08x}': f'2027-01-15T08:{number % 60:02}:00Z' for key in range(2000)})\n"
        "    files.use(f'{number:08x}', bytes(16), '2027-01-15T08:00:00Z')\n"
        "    print(number, flush=True)\n"
    )
    files = TokenUseFiles(tmp_path / "use")
    for rounds in (1, 3, 7):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "use")],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": python_path()},
        )
        assert process.stdout is not None
        for _ in range(rounds):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert len(files.last_uses()) == 2000
        for number in range(1, rounds + 1):
            assert files.use(f"{number:08x}", b"another", EXPIRES) == endpoint_hash(bytes(16))


def test_a_later_use_that_another_relay_has_stored_stays(tmp_path: Path) -> None:
    files = TokenUseFiles(tmp_path / "use")
    files.store_last_uses({"a": "2027-01-15T08:00:00Z", "b": "2027-01-15T08:00:00Z"})
    files.store_last_uses({"a": "2027-01-15T07:00:00Z", "b": "2027-01-15T09:00:00Z"})
    assert files.last_uses() == {"a": "2027-01-15T08:00:00Z", "b": "2027-01-15T09:00:00Z"}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 1}', b"\xff\xfe", b'{"a": "2027'])
def test_a_damaged_list_of_uses_says_nothing_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    files = TokenUseFiles(tmp_path)
    (tmp_path / "last.json").write_bytes(content)
    assert files.last_uses() == {}
    files.store_last_uses({"a": "2027-01-15T08:00:00Z"})
    assert files.last_uses() == {"a": "2027-01-15T08:00:00Z"}


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_a_damaged_file_of_a_used_token_lets_nobody_use_it(tmp_path: Path, content: bytes) -> None:
    files = TokenUseFiles(tmp_path)
    (tmp_path / "11111111.used").write_bytes(content)
    with pytest.raises(ValueError):  # noqa: PT011 - the relay tells that it cannot store the use
        files.use("11111111", ENDPOINTS[0], EXPIRES)
    files.forget(EXPIRES_S + 1000 * DAY_S, set())
    assert files.is_used("11111111")


def test_used_tokens_are_forgotten_a_month_after_they_expired(tmp_path: Path) -> None:
    files = TokenUseFiles(tmp_path / "use")
    files.forget(0, set())  # the folder is not there yet
    files.use("11111111", ENDPOINTS[0], EXPIRES)
    files.forget(EXPIRES_S + 30 * DAY_S, set())
    assert files.is_used("11111111")
    files.forget(EXPIRES_S + 30 * DAY_S + 1, set())
    assert not files.is_used("11111111")


def test_a_used_token_that_still_exists_is_never_forgotten(tmp_path: Path) -> None:
    """Its file has the time of expiry that it had when it was used, and `user expire` may have set a later one."""
    files = TokenUseFiles(tmp_path / "use")
    for key_id in ("11111111", "22222222"):
        files.use(key_id, ENDPOINTS[0], EXPIRES)
    files.forget(EXPIRES_S + 1000 * DAY_S, {"11111111"})
    assert files.use("11111111", ENDPOINTS[1], EXPIRES) == endpoint_hash(ENDPOINTS[0])
    assert not files.is_used("22222222")


@pytest.mark.parametrize("failing", ["read_bytes", "unlink"])
def test_a_file_of_a_used_token_that_cannot_be_read_or_removed_stays(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TokenUseFiles(tmp_path / "use")
    for key_id in ("11111111", "22222222", "33333333"):
        files.use(key_id, ENDPOINTS[0], EXPIRES)
    real = getattr(Path, failing)

    def refuse(path: Path, **options: bool) -> object:
        if path.name == "22222222.used":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, failing, refuse)
        files.forget(EXPIRES_S + 1000 * DAY_S, set())
    assert [files.is_used(key_id) for key_id in ("11111111", "22222222", "33333333")] == [False, True, False]
