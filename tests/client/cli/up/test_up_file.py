"""The file of `tunnel up`: its mistakes, its example, its schema, and the options that print or check it."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path

import jsonschema
import pytest

from tests.client.cli.up.rig import private
from tunnel.ground.carrier_names import CARRIERS
from tunnel.ground.relay_options import OPTIONS
from tunnel_client.cli.main import main, make_parser
from tunnel_client.cli.up.declaration import ENTRY_TYPES, EntryPart, RelayPart, json_schema
from tunnel_client.cli.up.example import EXAMPLE
from tunnel_client.cli.up.file import BrokenFileError, default_path, read_up_file
from tunnel_client.cli.up.relay_choice import chosen_settings
from tunnel_client.errors import UsageError
from tunnel_client.login_file import write_login
from tunnel_client.settings import RelaySettings
from tunnel_client.stored_login import Login

UP_MD = Path(__file__).parents[4] / "docs" / "UP.md"
RELAY = '[relay]\nurl = "https://relay.example"\nproxy = "none"\n'
ENTRY = '[forward]\na = "5432:db.internal:5432"\n'

pytestmark = pytest.mark.usefixtures("home")


def written(directory: Path, text: str) -> Path:
    path = directory / "tunnel.toml"
    path.write_text(text)
    return path


def problems(directory: Path, text: str) -> list[str]:
    with pytest.raises(BrokenFileError) as caught:
        read_up_file(written(directory, text))
    return [problem.partition("tunnel.toml: ")[2] for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[forward", "this is not TOML: "),
        ("a = " + "[" * 100_000, "this is not TOML: its brackets are nested too deeply"),
        ("", "there is no entry: write at least one line under [forward], [expose] or [proxy]"),
        ("[forwards]\n" + ENTRY, "[forwards] is not known: the tables are relay, forward, expose, proxy"),
        ("forward = 5", "forward: this must be a table: write [forward], and a line for each entry below it"),
        ("[forward]\na = 5", "forward a: write a text, or a table with the setting spec"),
        ("[forward]\na = 'x'", "forward a: 'x' is not a forward specification: write [BIND:]PORT:HOST:PORT or"),
        ("[forward.a]\nrate = '1 MiB/s'", "forward a: the table misses required field `spec`"),
        ("[forward.a]\nspec = '1:b'\nrte = '1'", "forward a: rte is not known: did you mean rate?"),
        ("[forward.a]\nspec = '1:b'\nqq = '1'", "forward a: qq is not known: the settings are rate, spec"),
        ("[relay]\ntoken = 'x'\n" + ENTRY, "relay: token is not known: did you mean token-file?"),
        ("[forward.a]\nspec = '1:b'\nrate = '1'", "forward a: '1' is not a rate: write it as in 20 MiB/s"),
        ("[expose]\na = 'x'", "expose a: 'x' is not an address: write HOST:PORT"),
        ("[expose.a]\naddress = 'a:1'\nservice = 'a b'", "expose a: 'a b' is not the name of a service"),
        ("[expose.a]\naddress = 'a:1'\nbacklog = 0", "expose a: Expected `int` >= 1 - at `backlog`"),
        ("[expose.'udp/a']\naddress = 'unix:/x'", "expose udp/a: udp/a unix:/x: a Unix socket carries no datagrams"),
        ("[expose.a]\naddress = 'h:1'\nclient-address = 'none'", "expose a: --client-address needs --public PORT or"),
        ("[forward]\na = '5-7:h:5-7'\nb = '6:x'", "forward a and forward b both need the local tcp port 6"),
        ("[forward]\na = 'unix:/s:x'\nb = 'unix:/s:y'", "forward a and forward b both need the socket /s: change it"),
        ("[proxy]\na = 'x:y'", "proxy a: 'x:y' is not an address to listen on"),
        ("[relay]\nlinks = 9\n" + ENTRY, "relay: Expected `int` <= 4 - at `links`"),
        ("[relay]\nrate = '9'\n" + ENTRY, "relay: '9' is not a rate"),
        ("[relay]\nproxy = 'http://a:b@c'\n" + ENTRY, "relay: proxy holds a password: write the URL to a file of mode"),
        ("[relay]\nproxy = 'x'\nproxy-file = 'y'\n" + ENTRY, "relay: both proxy and proxy-file are set"),
        (RELAY + "[[relay.further]]\n" + ENTRY, "relay: the table misses required field `url` - at `further[0]`"),
        (
            RELAY + "[[relay.further]]\nurl = 'u'\nlinks = 1\n" + ENTRY,
            "relay: links is not known - at `further[0]`",
        ),
        ("[[relay.further]]\nurl = 'u'\n" + ENTRY, "relay: write its url, since there are further relays"),
        (
            RELAY + "[[relay.further]]\nurl = 'https://relay.example/'\n" + ENTRY,
            "relay: https://relay.example is named",
        ),
        (
            RELAY + "[[relay.further]]\nurl = 'https://Relay.example:443'\n" + ENTRY,
            "relay: https://relay.example is named",
        ),
        (RELAY + "[[relay.further]]\nurl = 'u'\nproxy = 'http://a:b@c'\n" + ENTRY, "relay u: proxy holds a password"),
        ("[forward]\na = '1:b'\nc = '*:1:d'", "forward a and forward c both need the local tcp port 1: change it in"),
        ("[forward]\na = '1:b'\n[proxy]\nc = '1'", "forward a and proxy c both need the local tcp port 1"),
        (
            "[expose]\na = 'h:1'\n[expose.b]\naddress = 'h:2'\nservice = 'a'",
            "expose a and expose b both need the name a",
        ),
    ],
)
def test_a_mistake_is_named_with_its_entry(text: str, problem: str, tmp_path: Path) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith(problem)


def test_all_mistakes_are_found_and_the_error_quotes_the_first_and_counts_the_others(tmp_path: Path) -> None:
    text = "[forward]\na = 'x'\nb = 'y'\n"
    assert [found.partition(":")[0] for found in problems(tmp_path, text)] == ["forward a", "forward b"]
    with pytest.raises(UsageError, match=r"forward a: 'x' .* \(and 1 more: see `tunnel up --check -c .*`\)"):
        read_up_file(tmp_path / "tunnel.toml")


def test_ports_that_only_look_alike_are_no_clash(tmp_path: Path) -> None:
    text = "[forward]\na = '0:b:1'\nc = '0:b:1'\nd = '127.0.0.2:5:b:1'\ne = '127.0.0.3:5:b:1'\nf = 'udp/5:b:1'\n"
    assert len(read_up_file(written(tmp_path, text)).entries) == 5


def test_two_users_a_file_that_another_can_write_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRY)
    path.chmod(0o666)
    with pytest.raises(UsageError, match=r"every user of this machine can change .*: check it, and run `chmod o-w"):
        read_up_file(path)
    path.chmod(0o664)  # a group of one's own is usual
    assert read_up_file(path).entries
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(UsageError, match="belongs to another user, who could lead your connections anywhere"):
            read_up_file(path)


def test_a_file_that_is_not_there_or_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file: write one with `tunnel up --example -c .*`, or name another"):
        read_up_file(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_up_file(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not text in UTF-8"):
        read_up_file(tmp_path / "binary")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="cannot be read: it is no ordinary file"):
        read_up_file(tmp_path / "pipe")


def test_two_users_a_file_that_another_can_replace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    path = written(tmp_path / "open", ENTRY)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UsageError, match="can be replaced by every user of this machine"):
        read_up_file(path)


def test_a_file_that_is_too_long_is_refused_and_not_cut(tmp_path: Path) -> None:
    path = written(tmp_path, ENTRY + "#" * ((1 << 20) - len(ENTRY)))
    assert read_up_file(path).entries
    with path.open("a") as file:
        file.write("\nb = '5:b:1'")
    with pytest.raises(UsageError, match="is longer than 1024 KiB: check that it is the right file"):
        read_up_file(path)


def test_paths_start_at_the_directory_of_the_file_and_secrets_are_watched(tmp_path: Path) -> None:
    text = f'{RELAY.replace("proxy", "#")}token-file = "token"\nproxy-file = "~/p"\nheader-file = "/h"\n{ENTRY}'
    read = read_up_file(written(tmp_path, text))
    assert read.relay.token_file == f"{tmp_path}/token"
    assert read.files == [tmp_path / "tunnel.toml", tmp_path / "token", Path.home() / "p", Path("/h")]


SEVERAL = f"""[relay]
url = "https://one.example"
token-file = "one"
header-file = "gate"
hostname = "gate.example"
ca = "ca.pem"
links = 2
same-users = true

[[relay.further]]
url = "https://two.example"
token-file = "two"
sni = "two.internal"
proxy = "none"

[[relay.further]]
url = "https://three.example"
ca = "/other.pem"
{ENTRY}"""


@pytest.fixture
def several(tmp_path: Path) -> Path:
    private(tmp_path / "one", "token-1")
    private(tmp_path / "two", "token-2")
    private(tmp_path / "gate", "X-Gate: key")
    return written(tmp_path, SEVERAL)


def chosen(path: Path, *options: str) -> list[RelaySettings]:
    read = read_up_file(path)
    return chosen_settings(read, make_parser(["up"]).parse_args(["up", *options])).each()


def test_a_relay_of_the_file_may_be_named_in_another_spelling(several: Path) -> None:
    two = "HTTPS://TWO.example:443/"
    (alone,) = chosen(several, "--relay", two)
    assert (alone.url, alone.token, alone.sni) == (two, "token-2", "two.internal")


def test_each_relay_of_the_file_has_its_own_settings(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no token for https://three.example: store it with `tunnel login --add"):
        chosen(several)
    write_login(
        Login("https://three.example", token="token-3"), Login("https://one.example", token="old", proxy="none")
    )
    one, two, three = chosen(several)
    assert [each.token for each in (one, two, three)] == ["token-1", "token-2", "token-3"]
    assert [each.headers for each in (one, two, three)] == [{"X-Gate": "key"}, None, None]
    assert [each.hostname for each in (one, two, three)] == ["gate.example", None, None]
    assert [each.sni for each in (one, two, three)] == [None, "two.internal", None]
    assert [each.proxy for each in (one, two, three)] == [None, None, "env"]
    ca = str(several.parent / "ca.pem")
    assert [each.ca for each in (one, two, three)] == [ca, ca, "/other.pem"]
    assert all(each.links == 2 and each.same_users for each in (one, two, three))
    monkeypatch.setenv("TUNNEL_TOKEN", "env")  # the file takes precedence
    monkeypatch.setenv("TUNNEL_RELAY", "https://env.example")
    assert [each.token for each in chosen(several)] == ["token-1", "token-2", "token-3"]
    assert read_up_file(several).files == [several, *(several.parent / name for name in ("one", "gate", "two"))]


def test_options_choose_among_the_relays_of_the_file(several: Path, tmp_path: Path) -> None:
    write_login(Login("https://three.example", token="token-3"))
    two, one = chosen(several, "--relay", "https://two.example/", "--relay", "https://one.example", "--ca", "/c")
    assert [(each.token, each.ca, each.hostname) for each in (two, one)] == [
        ("token-2", "/c", None),
        ("token-1", "/c", "gate.example"),
    ]
    assert (two.sni, one.sni, two.headers, one.headers) == ("two.internal", None, None, {"X-Gate": "key"})
    with pytest.raises(UsageError, match=r"no token for https://other\.example"):  # it gets no token of another relay
        chosen(several, "--relay", "https://one.example", "--relay", "https://other.example")
    assert chosen(several, "--relay", "https://other.example")[0].token is None
    private(tmp_path / "x", "x")
    files = [option for name in ("x", "two", "one") for option in ("--token-file", str(tmp_path / name))]
    assert [each.token for each in chosen(several, *files, "--hostname", "h")] == ["x", "token-2", "token-1"]
    assert [each.hostname for each in chosen(several, *files, "--hostname", "h")] == ["h", None, None]
    assert read_up_file(several, token_file="x").files == [several, Path.cwd() / "x", several.parent / "gate"]


def test_the_check_names_all_relays(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_login(Login("https://three.example", token="token-3"))
    (several.parent / "ca.pem").write_text("")
    several.write_text(several.read_text().replace('ca = "ca.pem"\n', "").replace('ca = "/other.pem"\n', ""))
    assert main(["up", "-c", str(several), "--check"]) == 0
    assert "1 entry for https://one.example, https://two.example, https://three.example" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["token-file", "proxy-file", "header-file"])
def test_two_users_a_secret_that_others_can_read_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, f'[relay]\nurl = "https://relay.example"\n{name} = "secret"\n{ENTRY}')
    private(tmp_path / "secret", "X: s3cret").chmod(0o640)
    assert main(["up", "-c", str(path), "--check"]) == 2
    text = capsys.readouterr().err
    assert f"{name} {tmp_path}/secret is open to other users (mode 0640): run `chmod 600" in text
    assert "s3cret" not in text


def test_an_option_takes_precedence_over_the_file_even_with_its_default_value(tmp_path: Path) -> None:
    def chosen(more: str, *options: str) -> tuple[int, float, float]:
        read = read_up_file(written(tmp_path, f"{RELAY}{more}{ENTRY}"))
        settings = chosen_settings(read, make_parser(["up"]).parse_args(["up", *options]))
        return settings.links, settings.pull_interval, settings.user_timeout

    of_file = "links = 3\npull-interval = 2\nuser-timeout = 20\n"
    assert chosen("") == (1, 0.0, 300.0)
    assert chosen(of_file) == (3, 2.0, 20.0)
    assert chosen(of_file, "--links", "1", "--pull-interval", "0", "--user-timeout", "300") == (1, 0.0, 300.0)
    assert chosen("", "--links", "2", "--pull-interval", "1", "--user-timeout", "5") == (2, 1.0, 5.0)


# the example and the schema


def test_the_example_is_written_once_and_can_be_used(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = default_path()
    assert path == home / "config" / "tunnel" / "tunnel.toml"
    assert main(["up", "--example"]) == 0
    assert f"{path} is written" in capsys.readouterr().out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(read_up_file(path).entries) == [
        "forward postgres",
        "forward reports",
        "forward backup",
        "proxy browser",
    ]
    assert main(["up", "--check", "--relay", "https://relay.example"]) == 0
    assert capsys.readouterr().out == (
        f"{path}: 4 entries for https://relay.example\n"
        "  forward postgres: 127.0.0.1:5432 -> db.internal:5432\n"
        "  forward reports: 127.0.0.1:8081 -> reports\n"
        "  forward backup: 127.0.0.1:9000 -> backup.internal:9000 at 2 MiB/s\n"
        "  proxy browser: proxy on 127.0.0.1:1080\n"
    )
    assert main(["up", "--example"]) == 2
    assert "exists and is not overwritten: name another file with -c FILE" in capsys.readouterr().err


def uncommented(text: str) -> str:
    return re.sub(r"^#(?=[a-z-]+ = |\[\[)", "", text, flags=re.MULTILINE).replace('proxy = "http', '#"')


@pytest.mark.parametrize("text", [EXAMPLE, uncommented(EXAMPLE)])
def test_the_schema_fits_the_example(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(tomllib.loads(text), schema)
    assert read_up_file(written(tmp_path, text)).entries


@pytest.mark.parametrize(
    "text", ["[forwards]", "[forward]\na = 5", "[proxy.a]", "[relay]\nlinks = 9", "[expose.a]\nb = 1"]
)
def test_the_schema_refuses_what_the_parser_refuses(text: str, tmp_path: Path) -> None:
    assert problems(tmp_path, text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), json_schema())


def _settings_of(*parts: type[EntryPart] | type[RelayPart]) -> set[str]:
    return {name for part in parts for name in part.__struct_encode_fields__}


def test_every_setting_stands_in_the_example_or_the_document() -> None:
    text = UP_MD.read_text() + EXAMPLE
    for name in _settings_of(RelayPart, *(part for part, _ in ENTRY_TYPES.values())):
        assert name in text, name


def test_the_file_of_the_document_can_be_copied(tmp_path: Path) -> None:
    found = re.findall(r"```toml\n(.*?)```", UP_MD.read_text(), re.DOTALL)
    assert found
    for text in found:
        assert read_up_file(written(tmp_path, text)).entries
        jsonschema.validate(tomllib.loads(text), json_schema())


def test_the_choices_are_those_of_the_options() -> None:
    settings = json_schema()["$defs"]["RelayPart"]["properties"]
    assert set(settings["carrier"]["enum"]) == {"", *CARRIERS}
    assert set(settings["encryption"]["enum"]) == {"", *OPTIONS["encryption"].choices}


def test_a_token_file_given_as_an_option_is_watched_in_place_of_that_of_the_file(tmp_path: Path) -> None:
    private(tmp_path / "token", "tnl_a")
    path = written(tmp_path, f'{RELAY}token-file = "token"\n{ENTRY}')
    assert read_up_file(path).files == [path, tmp_path / "token"]
    assert read_up_file(path, token_file="other").files == [path, Path.cwd() / "other"]
