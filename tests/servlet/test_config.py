"""The relay's configuration: its meaning, and the errors that operators see."""

import re
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from random import Random

import pytest

from tunnel.wire import PublicPlace, Target, TargetKind
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.proxies import TrustedProxies
from tunnel_servlet.access.tokens import TokenTable, make_token
from tunnel_servlet.config import (
    AuditSettings,
    ConfigError,
    ListenAddress,
    RelayConfig,
    ServiceLimits,
    parse_address,
    parse_config,
    parse_tokens,
    render_users,
    require_safe,
    require_users,
)
from tunnel_servlet.switch.config import SETTABLE, SwitchConfig
from tunnel_servlet.switch.decisions import Hand, HandTo

RELAY_MD = Path(__file__).parents[2] / "docs" / "RELAY.md"
FULL = """
listen = ["127.0.0.1:8080", "https://[::1]:8443", "http://0.0.0.0:80"]
base = "/a/b"
admin = "127.0.0.1:9080"
exit = "none"
tokens = "t.toml"
names_may_resolve_to = ["10.0.0.0/8"]
trace = "traces"

[proxies]
trusted = ["10.1.0.0/16", "unix"]
proxy_protocol = true
[audit]
file = "a.jsonl"
required = true
[tls]
certificate = "c.pem"
key = "k.pem"

[everyone]
services = ["*"]

[users.ann]
connect = ["db.internal:5432"]
listen = ["reports"]

[users."b@c"]
exit = true

[limits]
body_bytes_max = 65536
header_seconds = 0.5
drain_seconds = 7
"""


def test_the_settings_of_a_file_are_read() -> None:
    config = parse_config(FULL, "relay.toml")
    assert config.listen == (
        ListenAddress("127.0.0.1", 8080),
        ListenAddress("::1", 8443, tls=True),
        ListenAddress("0.0.0.0", 80, tls=False),
    )
    assert (config.base, config.exit, config.trace, config.tokens_file) == ("/a/b", "none", "traces", "t.toml")
    assert str(config.admin) == "127.0.0.1:9080"
    assert config.tls is not None
    assert (config.tls.certificate, config.tls.key, config.tls.client_ca) == ("c.pem", "k.pem", "")
    assert config.proxies == TrustedProxies([ip_network("10.1.0.0/16")], has_unix=True, has_header=True)
    assert config.audit == AuditSettings(file="a.jsonl", required=True)
    assert config.switch.body_bytes_max == 65536
    assert (config.limits.header_seconds, config.limits.drain_seconds) == (0.5, 7)
    policy = config.grants
    assert policy.rules_of("ann").check_target("db.internal", 5432).allowed
    assert policy.may_listen("ann", "reports")
    assert policy.is_exit("b@c")
    assert policy.authorise("x", Target(TargetKind.SERVICE, "y")) == Hand(HandTo.SERVICE, rule="*")


def test_an_empty_file_is_the_default() -> None:
    config = parse_config("", "relay.toml")
    assert config.listen == RelayConfig().listen
    assert (config.limits, config.exit, config.tls) == (ServiceLimits(), "inline", None)


def test_the_document_names_every_limit_and_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", RELAY_MD.read_text(), re.MULTILINE))
    switch, limits = SwitchConfig(), ServiceLimits()
    defaults = {name: getattr(switch, name) for name in SETTABLE}
    defaults |= {item.name: getattr(limits, item.name) for item in fields(limits)}
    assert {name: f"{value:,}" for name, value in defaults.items()} == rows
    for name, value in defaults.items():
        parse_config(f"[limits]\n{name} = {value}", "relay.toml")


def test_the_defaults_are_limits() -> None:
    """A value that is far too large protects from nothing."""
    limits = ServiceLimits()
    most = {
        "header_seconds": 30,
        "body_seconds": 60,
        "answer_seconds": 120,
        "tls_seconds": 30,
        "keepalive_seconds": 120,
        "link_opening_seconds": 30,
        "auth_failures_per_minute": 60,
        "connections_max": 20_000,
        "connections_per_address_max": 2000,
        "connections_per_user_max": 4000,
        "public_connections_max": 4096,
        "public_connections_per_address_max": 256,
        "waiting_bytes_max": 512 << 20,
        "link_batch_bytes_max": 16 << 20,
        "exit_connections_max": 16_384,
        "dial_seconds": 30,
        "drain_seconds": 600,
        "trace_bytes_max": 1 << 30,
    }
    assert set(most) == set(ServiceLimits.__slots__)
    assert {name: getattr(limits, name) for name in most if getattr(limits, name) > most[name]} == {}


ERRORS = [
    ("listen = [", "relay.toml: not TOML"),
    ("lisen = []", "relay.toml: lisen: unknown key; did you mean listen?"),
    ("xyz = 1", "relay.toml: xyz: unknown key; known keys: admin, audit, base"),
    ("listen = 'x'", "relay.toml: listen: expected array, got str"),
    ("listen = ['x']", "relay.toml: listen: 'x' is not an address: write HOST:PORT"),
    ("listen = [1]", "relay.toml: listen[0]: expected str, got int"),
    ("admin = '1:x'", "relay.toml: admin: '1:x' is not an address"),
    ("base = 'x'", "relay.toml: base: 'x' is not a path"),
    ("base = '/x/'", "relay.toml: base: '/x/' is not a path"),
    ("exit = 'maybe'", "relay.toml: exit: invalid enum value 'maybe'"),
    ("[audit]\nfiel = 'a'", "relay.toml: audit.fiel: unknown key; did you mean file?"),
    ("[audit]\nto = 'disk'", "relay.toml: audit.to: invalid enum value 'disk': write it as in to = \"file\""),
    ("[audit]\nfile_bytes_max = 1", "relay.toml: audit: file_bytes_max must be at least 65536, not 1"),
    ("[audit]\nevents_per_minute = 0", "relay.toml: audit: events_per_minute must be at least 1, not 0"),
    ("[audit]\nto = 'syslog'\nsyslog = 'logs'", "audit: syslog is a path such as /dev/log, or HOST:PORT, not 'logs'"),
    ("[audit]\nfile = ''", "relay.toml: audit: file must not be empty"),
    ("[proxies]\ntrusted = ['10.0.0.0/33']", "relay.toml: proxies.trusted: '10.0.0.0/33' is not a network"),
    ("[proxies]\nproxy_protocol = true", "relay.toml: proxies.proxy_protocol: name the proxies: add the line trusted"),
    ("[proxies]\ntrust = []", "relay.toml: proxies.trust: unknown key; did you mean trusted?"),
    ("[tls]\nkey = 'k'", "relay.toml: tls: object missing required field certificate"),
    ("[tls]\nkey = 'k'\ncertificate = 'c'\nca = 'x'", "relay.toml: tls.ca: unknown key; remove it"),
    ("[users.ann]\nconect = []", "relay.toml: users.ann.conect: unknown key; did you mean connect?"),
    ("[users.ann]\nconnect = 'x'", "relay.toml: users.ann.connect: expected array, got str"),
    ("[users.ann]\nconnect = ['x']", "relay.toml: users.ann.connect: 'x' is not a rule"),
    ("[users.ann]\nexit = 1", "relay.toml: users.ann.exit: expected bool, got int"),
    ("[users]\nann = 1", "relay.toml: users.ann: expected object, got int"),
    ("[users.'a b']", "relay.toml: users: 'a b' is not a user name"),
    ("[everyone]\nconnect = ['10.0.0.1/8:1']", "did you mean 10.0.0.0/8?"),
    ("names_may_resolve_to = ['x']", "relay.toml: names_may_resolve_to: 'x' is not a network"),
    ("[limits]\nbody_bytes = 1", "relay.toml: limits.body_bytes: unknown key; did you mean body_bytes_max?"),
    ("[limits]\nbody_bytes_max = 'x'", "relay.toml: limits.body_bytes_max: expected a whole number, not 'x'"),
    ("[limits]\nbody_bytes_max = 1.5", "relay.toml: limits.body_bytes_max: expected a whole number, not 1.5"),
    ("[limits]\nbody_bytes_max = true", "relay.toml: limits.body_bytes_max: expected a whole number, not True"),
    (
        "[limits]\nbody_bytes_max = 0",
        "relay.toml: limits: body_bytes_max must be at least 1, not 0",
    ),
    (
        "[limits]\nheader_seconds = 0",
        "relay.toml: limits: header_seconds must be at least 0.001 and at most 1099511627776, not 0",
    ),
    (
        "[limits]\nheader_seconds = nan",
        "relay.toml: limits: header_seconds must be at least 0.001 and at most 1099511627776, not nan",
    ),
    ("[limits]\nheader_seconds = 'x'", "relay.toml: limits.header_seconds: expected a number, not 'x'"),
    ("[limits]\nnode = 'x'", "relay.toml: limits.node: unknown key"),
    ("[limits]\npark_us = 5000000", "relay.toml: limits.park_us: this is always 5000000: remove the line"),
    ("[limits]\nstreams = false", "relay.toml: limits.streams: this is always true: remove the line"),
    ("exit = 'inlin'", "exit: invalid enum value 'inlin': did you mean 'inline'? choose 'inline' or 'none'"),
    ("exit = 'maybe'", "exit: invalid enum value 'maybe': choose 'inline' or 'none'"),
    ("exit = true", 'exit: expected str, got bool: write it as in exit = "inline"'),
    ("listen = '127.0.0.1:8080'", 'expected array, got str: write it as in listen = ["127.0.0.1:8080"]'),
    ("listen = 8080", 'listen: expected array, got int: write it as in listen = ["127.0.0.1:8080"]'),
    ("admin = 9080", 'admin: expected str, got int: write it as in admin = "127.0.0.1:9080"'),
    ("[users.ann]\nconnect = 'db:1'", 'got str: write it as in connect = ["db.internal:5432"]'),
    ("[users.ann]\nlisten = [1]", 'users.ann.listen[0]: expected str, got int: write it as in listen = ["reports"]'),
    ("[users.ann]\nexit = 'yes'", "users.ann.exit: expected bool, got str: write it as in exit = true"),
    ("[users]\nann = 1", "users.ann: expected object, got int: write a table: [users.ann] on one line"),
    ("everyone = ['db:1']", "everyone: expected object, got array: write a table: [everyone] on one line"),
    ("tls = true", "got bool: write a table: [tls] on one line, certificate = "),
    ("[tls]\nkey = 'k'", "tls: object missing required field certificate: write a table: [tls] on one line"),
    ("[tls]\nkey = 1\ncertificate = 'c'", 'tls.key: expected str, got int: write it as in key = "relay.key"'),
    ("[tls]\ncertifcate = 'c'", "tls.certifcate: unknown key; did you mean certificate?"),
    ("[tls]\nca = 'c'", "tls.ca: unknown key; remove it; known keys: certificate, client_ca, client_optional, key"),
    ("[user.ann]", "user: unknown key; did you mean users?"),
    ("[users.ann]\nservice = ['x']", "users.ann.service: unknown key; did you mean services?"),
    ("[limits]\nbody_bytes_max = '9'", "not '9': write it as in body_bytes_max = 1048576"),
    ("[limits]\nheader_seconds = '9'", "not '9': write it as in header_seconds = 10"),
    ("[limits]\nbody_bytes_max = 0", "must be at least 1, not 0: write another number, or remove the line"),
    ("[users.ann]\nservices = ['a', 'b', 'a']", "users.ann.services: 'a' is listed twice: remove one"),
    ("[everyone]\nlisten = ['a', 'a']", "everyone.listen: 'a' is listed twice: remove one"),
    ("listen = ['a:1', 'a:1']", "relay.toml: listen: 'a:1' is listed twice"),
    ("[users.ann]\n[users.ann]", "not TOML: the table [users.ann] is there twice (at line 2, column 11): join the two"),
    ("[users.ann]\nrate = '20'", "users.ann.rate: '20' is not a rate: write it as in 20 MiB/s"),
    ("[everyone]\nrate = 20", 'everyone.rate: expected str, got int: write it as in rate = "20 MiB/s"'),
    ("[users.ann]\nrate = '1 B/s'", "users.ann.rate: '1 B/s' is out of range: a rate is at least 16 KiB/s"),
    ("[users.ann.rates]\n'db:1' = '1 MiB/s'", "rates: 'db:1' is no rule of this table: add it to connect, services or"),
    (
        "[users.ann]\nconnect = ['db:11']\n[users.ann.rates]\n'db:1' = '1 MiB/s'",
        "users.ann.rates: 'db:1' is no rule of this table: did you mean 'db:11'?",
    ),
    ("[users.ann]\nservices = ['a']\n[users.ann.rates]\na = 'x'", "users.ann.rates.a: 'x' is not a rate"),
    ("[users.ann]\nrates = 'x'", "users.ann.rates: expected object, got str: write a table: [users.ann.rates] on one"),
    (
        "[everyone]\npublic = ['0.0.0.0:80']",
        "everyone.public: a public place belongs to one user: list it under [users",
    ),
    ("[users.ann]\npublic = ['80']", "users.ann.public: '80' is not an address: write it as in 0.0.0.0:8443"),
    ("[users.ann]\npublic = ['localhost:80']", "'localhost:80' is not an address: write it as in 0.0.0.0:8443"),
    ("[users.ann]\npublic = ['::1:80']", "'::1:80' is not an address: write it as in 0.0.0.0:8443 or [::]:8443"),
    ("[users.ann]\npublic = ['[127.0.0.1]:80']", "'[127.0.0.1]:80' is not an address"),
    ("[users.ann]\npublic = ['0.0.0.0:0']", "'0.0.0.0:0': a port is a number from 1 to 65535"),
    ("[users.ann]\npublic = 80", 'users.ann.public: expected array, got int: write it as in public = ["0.0.0.0:8443"]'),
    ("[users.ann]\npublic_hosts = ['a.b']", "public_http: public_hosts need a port: add the line public_http = ["),
    ("public_http = ['127.0.0.1:0']\n[users.ann]\npublic_hosts = ['*.b']", "'*.b' is not the name of a host"),
    (
        "[users.ann]\npublic = ['0.0.0.0:80']\n[users.bob]\npublic = ['127.0.0.1:80']",
        "users.bob.public: 80 belongs to ann already: a public port or host name belongs to one user",
    ),
    (
        "public_http = ['127.0.0.1:0']\n[users.ann]\npublic_hosts = ['a.b']\n[users.bob]\npublic_hosts = ['A.b.']",
        "users.bob.public_hosts: a.b belongs to ann already",
    ),
    ("exit = inline", "not TOML: Invalid value (at line 1, column 8): check the quotes, brackets and commas there"),
]


def test_a_user_has_the_public_places_that_the_file_lists_and_no_others() -> None:
    text = """
public_http = ["0.0.0.0:80", "https://[::]:443"]
[tls]
certificate = "c"
key = "k"
[users.ann]
public = ["0.0.0.0:9000", "[::1]:9001"]
public_hosts = ["App.Example."]
[users.bob]
"""
    config = parse_config(text, "relay.toml")
    assert [str(address) for address in config.public_http] == ["0.0.0.0:80", "[::]:443"]
    grants = config.grants
    assert [str(grants.public_address("ann", PublicPlace(port))) for port in (9000, 9001, 1)] == [
        "0.0.0.0:9000",
        "[::1]:9001",
        "None",
    ]
    site, other = PublicPlace(host="app.example", http=True), PublicPlace(host="x.example", http=True)
    for user, place, why in (
        ("ann", PublicPlace(9000), ""),
        ("ann", site, ""),
        (
            "ann",
            other,
            "under [users.ann] in the relay's configuration, this line would allow it: public_hosts = [\"app",
        ),
        ("ann", PublicPlace(1), 'public = ["0.0.0.0:9000", "[::1]:9001", "0.0.0.0:1"]'),
        ("bob", PublicPlace(9000), 'public = ["0.0.0.0:9000"]'),
        ("bob", site, 'public_hosts = ["app.example"]'),
        ("sso:eve", site, "users of the identity provider open nothing to people without the tunnel"),
    ):
        found = grants.why_not_public(user, place)
        assert why in found, (user, place)
        assert bool(found) == bool(why), (user, place)
    assert "an open relay opens nothing" in grants.with_rules([], is_open=True).why_not_public("open", site)


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_an_error_names_file_key_and_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "relay.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "8080", ":8080", "x:", "x:y", "x:65536", "ftp://x:1", "x:-1", "[x]:1", "a b:1"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_address(text)


@pytest.mark.parametrize("text", ["::1:8080", "::1", "https://fd00::1:443"])
def test_an_ipv6_address_needs_brackets(text: str) -> None:
    with pytest.raises(ValueError, match=r"put brackets around IPv6 and add the port, as in \[::1\]:8080"):
        parse_address(text)


def test_a_star_does_not_stand_for_every_address_of_the_machine() -> None:
    with pytest.raises(ValueError, match=r"for every IPv4 address of this machine, write 0\.0\.0\.0:80$"):
        parse_address("*:80")


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False), ("relay.example:1", False)],
)
def test_loopback_addresses_are_recognised(text: str, is_loopback: bool) -> None:
    assert parse_address(text).is_loopback is is_loopback
    assert str(parse_address(text)) == text


# --- starting

TOKENS = TokenTable({"ann": [make_token(Random(1))[1]]})
POLICY = GrantTable({"ann": Grant(services=("*",))})
PUBLIC = (ListenAddress("0.0.0.0", 80),)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RelayConfig(), "tokens.toml: no user has a token: run `tunnel-relay user add NAME -c r.toml`"),
        (RelayConfig(tokens=TOKENS), "r.toml: no rule allows anything: add connect"),
        (RelayConfig(grants=POLICY), "no user has a token"),
        (RelayConfig(listen=PUBLIC, is_open=True), "--open: other machines can reach 0.0.0.0:80"),
        (RelayConfig(listen=(ListenAddress("127.0.0.1", 1, tls=True),), is_open=True), "needs a [tls] table"),
        (
            RelayConfig(admin=ListenAddress("::1", 1, tls=True)),
            "admin: the admin listener speaks no TLS: write [::1]:1",
        ),
    ],
)
def test_a_relay_does_not_start_with_a_mistaken_configuration(config: RelayConfig, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_safe(config, "r.toml")
    assert message in str(caught.value)


def test_a_relay_starts_with_tokens_and_rules_or_open_on_loopback() -> None:
    require_safe(RelayConfig(tokens=TOKENS, grants=POLICY, listen=PUBLIC), "r.toml")
    require_safe(RelayConfig(is_open=True), "r.toml")


# --- tokens


def test_users_are_written_and_read() -> None:
    keys = [make_token(Random(number), "2026-01-02")[1] for number in range(3)]
    users = {"ann": (keys[0], keys[1]), "b@c": (keys[2],)}
    text = render_users(users)
    assert parse_tokens(text, "t.toml").users == users
    assert "tnl_" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "t.toml: not TOML"),
        ("ann = 1", "t.toml: ann: a user may have only the key `tokens`"),
        ("[ann]\nrole = 1", "t.toml: ann: a user may have only the key `tokens`"),
        ("['a b']", "t.toml: 'a b' is not a user name"),
        ("[ann]\ntokens = 1", "t.toml: ann.tokens: expected array, got int"),
        ("[ann]\ntokens = [{id = 'x'}]", "t.toml: ann.tokens[0]: object missing required field sha256"),
        ("[ann]\ntokens = [{id = 'x', sha256 = 'y'}]", "t.toml: ann.tokens[0]: a key id is 8 hex digits"),
    ],
)
def test_a_damaged_token_file_is_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tokens(text, "t.toml")
    assert message in str(caught.value)


def test_two_users_with_one_key_are_refused() -> None:
    key = make_token(Random(1))[1]
    with pytest.raises(ConfigError, match="two tokens have the key id"):
        parse_tokens(render_users({"ann": [key], "bob": [key]}), "t.toml")


TLS = '[tls]\ncertificate = "c.pem"\nkey = "k.pem"\nclient_ca = "ca.pem"\n'


def test_certificates_belong_to_users() -> None:
    config = parse_config(f'{TLS}[users.ann]\ncertificates = ["dns:Ann.example", "CN:ann"]', "relay.toml")
    assert config.grants.certificates.users_of(["CN:ann"]) == ["ann"]
    assert config.grants.certificates.users_of(["DNS:ann.example"]) == ["ann"]
    assert config.tls is not None
    assert not config.tls.client_optional
    require_users(config)  # no token is needed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[users.ann]\ncertificates = ["CN:ann"]',
            "tls.client_ca: certificates of users need an authority: add the line",
        ),
        (f'{TLS}[everyone]\ncertificates = ["CN:ann"]', "everyone.certificates: a certificate belongs to one user"),
        (
            f'{TLS}[users.ann]\ncertificates = ["DNS:a.b"]\n[users.bob]\ncertificates = ["dns:A.b"]',
            "users.bob.certificates: DNS:a.b belongs to ann already",
        ),
        (f'{TLS}[users.ann]\ncertificates = ["ann"]', "users.ann.certificates: 'ann' is not a name in a certificate"),
        (f'{TLS}[users.ann]\ncertificates = ["CN:a", "CN:a"]', "users.ann.certificates: 'CN:a' is listed twice"),
        (
            f"{TLS}client_optional = 1",
            "tls.client_optional: expected bool, got int: write it as in",
        ),
        (
            '[tls]\ncertificate = "c.pem"\nkey = "k.pem"\nclient_optional = true',
            "tls.client_optional: there is no client_ca",
        ),
    ],
)
def test_certificates_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_config(text, "relay.toml")


SSO = '[sso]\nissuer = "https://login.example"\naudience = "tunnel"\n'
STAFF = '[groups.staff]\nconnect = ["db.internal:5432"]\n'


def test_groups_of_an_identity_provider_have_rules() -> None:
    config = parse_config(SSO + STAFF, "relay.toml")
    assert config.sso is not None
    assert (config.sso.issuer, config.sso.user_claim, config.sso.algorithms) == (
        "https://login.example",
        "sub",
        ("RS256", "ES256", "EdDSA"),
    )
    assert config.grants.has_group("staff")
    require_users(config)  # no token is needed
    require_safe(config, "relay.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STAFF, "groups: an identity provider names them: add the table [sso]"),
        (SSO, "sso: no group may attach: add connect = "),
        (
            f"{SSO}[groups.staff]\nexit = true",
            "groups.staff: exit, public, public_hosts and",
        ),
        (SSO.replace("https", "http") + STAFF, "issuer: 'http://login.example' is not a URL: write it as in https://"),
        (SSO.replace("login.example", "me@login.example") + STAFF, "is not a URL"),
        (SSO.replace('"tunnel"', '""') + STAFF, "audience: it is empty"),
        (f'{SSO}algorithms = ["none"]\n{STAFF}', "algorithms: none cannot be used: choose of RS256"),
        (f'{SSO}algorithms = ["HS256", "RS256"]\n{STAFF}', "algorithms: HS256 cannot be used"),
        (f"{SSO}algorithms = []\n{STAFF}", "algorithms: none cannot be used"),
        (f"{SSO}issuers = 1\n{STAFF}", "sso.issuers: unknown key; did you mean issuer?"),
        (f'{SSO}{STAFF}[groups.""]', "groups: '' is not the name of a group: write the printable name"),
        (f'{SSO}{STAFF}[groups." "]', "groups: ' ' is not the name of a group"),
        (f'{SSO}{STAFF}[groups."a\\nb"]', "groups: 'a\\nb' is not the name of a group"),
        (f'{SSO}{STAFF}[groups."a\\u0000"]', "groups: 'a\\x00' is not the name of a group"),
        (f"{SSO}[groups]\nstaff = 1", "groups.staff: expected object, got int: write a table"),
    ],
)
def test_an_identity_provider_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_config(text, "relay.toml")
