"""The options --proxy, --header, --hostname and --sni: secrets from files, and without their values in errors."""

import argparse
from pathlib import Path

import pytest

from tunnel.process.gateway_options import add_path_options, parse_headers, parse_proxy

SECRET = "s3cret"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "headers"
    made.touch(0o600)
    return made


def test_headers_come_from_options_and_files(file: Path) -> None:
    file.write_text(f"X-Id: a b\n\nX-Secret:{SECRET} \n")
    parser = argparse.ArgumentParser()
    add_path_options(parser)
    given = parser.parse_args(["--header", "X-Team: db", "--header", f"@{file}", "--sni", "front"])
    assert parse_headers(given.headers) == {"X-Team": "db", "X-Id": "a b", "X-Secret": SECRET}
    assert (given.hostname, given.sni) == ("", "front")
    assert parse_headers([]) == {}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_two_users_a_file_that_another_user_can_reach_is_refused(mode: int, file: Path) -> None:
    file.write_text(f"X-Secret: {SECRET}\n")
    file.chmod(mode)
    with pytest.raises(ValueError, match=f"--header @{file} is open to other users.*replace the secrets"):
        parse_headers([f"@{file}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SECRET.encode(), "line 1 of .* no colon"),
        (f"A: b\na: {SECRET}".encode(), "line 2 of .* already given"),
        (b"\xff: x", "not text in UTF-8"),
        (None, "there is no such file"),
    ],
)
def test_errors_name_the_place_and_no_value(text: bytes | None, message: str, file: Path) -> None:
    if text is None:
        file.unlink()
    else:
        file.write_bytes(text)
    with pytest.raises(ValueError, match=message) as caught:
        parse_headers([f"@{file}"])
    assert SECRET not in str(caught.value)
    with pytest.raises(ValueError, match="--header is not a header") as caught:
        parse_headers([SECRET])
    assert SECRET not in str(caught.value)


PROXY = f"http://me:{SECRET}@proxy.example:3128"


def test_a_proxy_comes_from_the_option_or_from_a_file(file: Path) -> None:
    file.write_text(f"{PROXY}\n")
    assert parse_proxy(f"@{file}") == PROXY
    assert [parse_proxy(given) for given in ("", "none", "env", PROXY)] == ["", "none", "env", PROXY]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_two_users_a_proxy_s_file_that_another_user_can_reach_is_refused(mode: int, file: Path) -> None:
    file.write_text(PROXY)
    file.chmod(mode)
    with pytest.raises(ValueError, match=f"--proxy @{file} is open to other users.*change the password") as raised:
        parse_proxy(f"@{file}")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\n", f"{PROXY} {PROXY}".encode(), b"\xff", b"@other"])
def test_a_proxy_s_file_must_hold_one_url(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"--proxy @{file} must hold one URL") as raised:
        parse_proxy(f"@{file}")
    assert SECRET not in str(raised.value)


def test_a_proxy_s_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"--proxy @{tmp_path}/no: there is no such file: write the URL"):
        parse_proxy(f"@{tmp_path}/no")


def test_the_name_of_a_file_is_not_taken_for_the_host_of_a_proxy(file: Path) -> None:
    file.write_text(PROXY)
    with pytest.raises(ValueError, match=f"--proxy {file}: this is a file: write --proxy @{file}") as raised:
        parse_proxy(str(file))
    assert SECRET not in str(raised.value)
