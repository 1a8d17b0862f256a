"""The relay's files: the sources of its settings, and how tokens are written."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tunnel_servlet.access.tokens import make_token
from tunnel_servlet.command.files import (
    Overrides,
    load_config,
    read_tokens,
    tokens_path,
    watched_files,
    write_users,
)
from tunnel_servlet.config import ConfigError

KEY = make_token(Random(1))[1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "relay.toml"
    path.write_text(
        "tokens = 'keys.toml'\ntrace = 'traces'\n[tls]\ncertificate = 'c.pem'\nkey = 'k.pem'\n"
        "[users.ann]\nconnect = ['db.internal:5432']\n"
    )
    write_users(tmp_path / "keys.toml", {"ann": [KEY]})
    return path


def test_paths_in_a_file_are_relative_to_it(file: Path) -> None:
    config = load_config(str(file))
    assert config.tls is not None
    assert config.tls.certificate == str(file.parent / "c.pem")
    assert config.tls.client_ca == ""
    assert config.trace == str(file.parent / "traces")
    assert config.tokens_file == str(tokens_path(str(file))) == str(file.parent / "keys.toml")
    assert len(config.tokens) == 1
    assert watched_files(str(file), config) == [file, *(file.parent / name for name in ("keys.toml", "c.pem", "k.pem"))]


def test_the_command_line_overrides_the_file(file: Path) -> None:
    overrides = Overrides(listen=("127.0.0.1:1",), allow=("web:80",), exit="none", admin="127.0.0.1:2", trace="t")
    config = load_config(str(file), overrides)
    assert [str(address) for address in config.listen] == ["127.0.0.1:1"]
    assert (config.exit, str(config.admin), config.trace) == ("none", "127.0.0.1:2", "t")
    for user, host, port in (("ann", "web", 80), ("bob", "web", 80), ("ann", "db.internal", 5432)):
        assert config.grants.rules_of(user).check_target(host, port).allowed
    assert not config.grants.rules_of("bob").check_target("db.internal", 5432).allowed


def test_without_a_file_the_defaults_apply() -> None:
    config = load_config("")
    assert (config.grants.is_empty, len(config.tokens), watched_files("", config)) == (True, 0, [])


def test_open_allows_everything_unless_rules_are_given() -> None:
    assert load_config("", Overrides(is_open=True)).grants.rules_of("open").check_target("x", 1).allowed
    policy = load_config("", Overrides(is_open=True, allow=("web:80",))).grants
    assert policy.rules_of("open").check_target("web", 80).allowed
    assert not policy.rules_of("open").check_target("x", 1).allowed
    assert policy.may_listen("open", "reports")


def test_two_users_of_an_open_relay_are_bound_by_the_rules_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text("[everyone]\nconnect = ['web:80']\nlisten = ['reports']\n[users.ann]\nconnect = ['db:5432']\n")
    grants = load_config(str(path), Overrides(is_open=True)).grants
    rules = grants.rules_of("open")
    assert [rules.check_target(*target).allowed for target in (("web", 80), ("db", 5432), ("x", 1))] == [True, 0, 0]
    assert [grants.may_listen("open", name) for name in ("reports", "news")] == [True, False]
    wider = load_config(str(path), Overrides(is_open=True, allow=("x:1",))).grants.rules_of("open")
    assert [wider.check_target(*target).allowed for target in (("web", 80), ("x", 1), ("x", 2))] == [True, True, False]


@pytest.mark.parametrize("text", ["", "[users.ann]\nconnect = ['web:80']\n", "[users.open]\n"])
def test_an_open_relay_whose_file_allows_its_clients_nothing_does_not_start(text: str, tmp_path: Path) -> None:
    """This check also holds for a reload: a relay whose rules vanish from its file must not allow everything."""
    path = tmp_path / "relay.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), Overrides(is_open=True))
    assert f"--open: {path} allows the clients of an open relay nothing" in str(caught.value)
    assert load_config(str(path), Overrides(is_open=True, allow=("web:80",))).is_open


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (Overrides(listen=("x",)), "--listen: 'x' is not an address"),
        (Overrides(admin="x"), "--admin: 'x' is not an address"),
        (Overrides(allow=("x",)), "--allow: 'x' is not a rule"),
    ],
)
def test_a_wrong_flag_is_explained(overrides: Overrides, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("", overrides)
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file: run `tunnel-relay init"):
        load_config(str(tmp_path / "missing.toml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(str(tmp_path))
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(str(tmp_path / "latin.toml"))


def test_a_token_file_is_private_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    assert read_tokens(path).users == {}
    write_users(path, {"ann": [KEY]})
    assert read_tokens(path).users == {"ann": (KEY,)}
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["tokens.toml"]


def test_two_users_a_prepared_temporary_file_is_not_followed(tmp_path: Path) -> None:
    """Otherwise another user could have the tokens written to a file of theirs, or over a file of the operator."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".tokens.toml.{os.getpid()}").symlink_to(victim)
    write_users(tmp_path / "tokens.toml", {"ann": [KEY]})
    assert victim.read_text() == "precious"
    assert read_tokens(tmp_path / "tokens.toml").users == {"ann": (KEY,)}


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.mkdir()
    with pytest.raises(ConfigError, match=r"directory.* nothing was changed"):
        write_users(path, {"ann": [KEY]})
    assert os.listdir(tmp_path) == ["tokens.toml"]


@pytest.mark.parametrize("name", ["relay.toml", "keys.toml"])
def test_two_users_rules_and_tokens_that_every_user_of_the_machine_can_change_are_refused(
    name: str, file: Path
) -> None:
    load_config(str(file))
    (file.parent / name).chmod(0o666)
    with pytest.raises(ConfigError, match=f"every user of this machine can change .*{name}: check it, and run `chmod"):
        load_config(str(file))
