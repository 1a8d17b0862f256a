"""The targets that rules allow: scenario 40 (SSRF), and the rules that operators write."""

from ipaddress import ip_address

import pytest

from tunnel_servlet.access.rules import Ruleset, Ruling, parse_network, parse_rule, read_host


def ruleset(rules: str, resolvable: str = "") -> Ruleset:
    return Ruleset(map(parse_rule, rules.split()), map(parse_network, resolvable.split()))


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("DB.Internal.", "db.internal"),
        ("a_b-c.example", "a_b-c.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("B\u00fccher.example", "xn--bcher-kva.example"),
        ("localhost", "localhost"),
        ("1and1.com", "1and1.com"),
        ("", None),
        (".", None),
        ("a..b", None),
        ("-a.b", None),
        ("a-.b", None),
        ("a b", None),
        ("a/b", None),
        ("a\x00b", None),
        ("user@host", None),
        ("a" * 64, None),
        (".".join(["a" * 60] * 5), None),
        ("\u00fc" * 70, None),
        ("[::1]", None),
        # Spellings that resolvers accept as addresses, although they are not in plain notation:
        ("0x7f.1", None),
        ("0x7f000001", None),
        ("127.1", None),
        ("127.0.1", None),
        ("0177.0.0.1", None),
        ("2130706433", None),
        ("127.0.0.01", None),
        ("1.2.3.4.5", None),
        ("a.0x", None),
        ("fe80::1%eth0", None),
        ("fe80::1%25eth0", None),
    ],
)
def test_a_host_is_a_plain_address_or_a_plain_name(host: str, found: str | None) -> None:
    assert read_host(host) == found


def test_plain_addresses_are_parsed() -> None:
    assert read_host("10.0.0.1") == ip_address("10.0.0.1")
    assert read_host("::FFFF:1.2.3.4") == ip_address("::ffff:1.2.3.4")


def test_targets_that_no_rule_lists_are_denied() -> None:
    assert not ruleset("").check_target("example.com", 443).allowed
    assert not ruleset("").check_target("1.1.1.1", 443).allowed


TARGETS = [
    ("db.internal:5432", "db.internal", 5432, True),
    ("db.internal:5432", "DB.INTERNAL.", 5432, True),
    ("db.internal:5432", "db.internal", 5433, False),
    ("db.internal:5432", "a.db.internal", 5432, False),
    ("db.internal:5432", "db.internal.evil", 5432, False),
    ("db.internal:*", "db.internal", 1, True),
    ("db.internal:*", "db.internal", 0, False),
    ("db.internal:*", "db.internal", 65536, False),
    ("10.0.0.0/8:22", "10.200.0.1", 22, True),
    ("10.0.0.0/8:22", "11.0.0.1", 22, False),
    ("10.0.0.5:22", "10.0.0.5", 22, True),
    ("10.0.0.5:22", "10.0.0.6", 22, False),
    ("[fd00::/8]:22", "fd12::1", 22, True),
    ("[fd12::1]:22", "fd12:0:0::1", 22, True),
    ("[fd12::1]:22", "fd12::2", 22, False),
    ("10.0.0.5:22", "::ffff:10.0.0.5", 22, True),
    ("*:443", "example.com", 443, True),
    ("*:443", "1.1.1.1", 443, True),
    ("*:443", "1.1.1.1", 80, False),
    ("0.0.0.0/0:443", "1.1.1.1", 443, True),
    ("[::/0]:443", "2606:4700::1", 443, True),
    # A network allows no names: the relay would have to resolve them.
    ("0.0.0.0/0:443", "example.com", 443, False),
]


@pytest.mark.parametrize(("rules", "host", "port", "allowed"), TARGETS)
def test_a_rule_must_match_both_host_and_port(rules: str, host: str, port: int, allowed: bool) -> None:
    assert ruleset(rules).check_target(host, port).allowed is allowed


# Scenario 40, however wide the rules are.
INNER = """127.0.0.1 127.8.8.8 ::1 0.0.0.0 :: 10.0.0.1 172.16.0.1 192.168.0.1 100.64.0.1 169.254.1.1 169.254.169.254
fd00:ec2::254 fd00::1 fe80::1 168.63.129.16 255.255.255.255 224.0.0.1 ff02::1 ::ffff:127.0.0.1 ::ffff:169.254.169.254
::ffff:0:0 ::7f00:1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::7f00:1 2002:7f00:1::1 2002:a9fe:a9fe::
2001:0:7f00:1::1 2001:0:101:101::80ff:fffe 2606::5efe:7f00:1 0x7f.1 127.1 2130706433 0177.0.0.1 fe80::1%1"""


@pytest.mark.parametrize("host", INNER.split())
def test_wide_rules_do_not_allow_internal_addresses(host: str) -> None:
    assert not ruleset("*:* 0.0.0.0/0:* [::/0]:*").check_target(host, 80).allowed


@pytest.mark.parametrize("address", [text for text in INNER.split() if read_host(text) is not None])
def test_a_name_that_resolves_to_an_internal_address_is_denied_at_the_exit(address: str) -> None:
    """DNS rebinding: each resolved address is checked, whichever rule allowed the name."""
    rules = ruleset("*:* evil.example:80 0.0.0.0/0:*")
    assert rules.check_target("evil.example", 80).allowed
    assert not rules.check_address(ip_address(address), 80, "evil.example").allowed


@pytest.mark.parametrize(
    ("rules", "address", "allowed"),
    [
        ("127.0.0.1:80", "127.0.0.1", True),
        ("127.0.0.0/8:80", "127.9.9.9", True),
        ("126.0.0.0/7:80", "127.0.0.1", False),  # wider than the loopback range
        ("10.0.0.0/8:80", "10.1.1.1", True),
        ("8.0.0.0/5:80", "10.1.1.1", False),
        ("169.254.0.0/16:80", "169.254.1.1", True),
        ("169.254.0.0/16:80", "169.254.169.254", False),  # metadata addresses must be listed exactly
        ("169.254.169.254:80", "169.254.169.254", True),
        ("0.0.0.0:80", "0.0.0.0", False),  # not the address of a host
        ("224.0.0.0/4:80", "224.0.0.1", False),
        ("[::1]:80", "::1", True),
        ("127.0.0.1:80", "::ffff:127.0.0.1", True),
        ("[::ffff:7f00:1]:80", "::ffff:127.0.0.1", False),  # a rule must name the address that is reached
        ("10.0.0.0/8:80", "64:ff9b::a00:1", True),
        ("192.0.2.0/24:80 127.0.0.0/8:80", "2001:0:c000:201::80ff:fffe", True),
        ("127.0.0.0/8:80", "2001:0:c000:201::80ff:fffe", False),  # the Teredo server is not listed
    ],
)
def test_internal_addresses_are_allowed_only_if_listed(rules: str, address: str, allowed: bool) -> None:
    assert ruleset(rules).check_target(address, 80).allowed is allowed


@pytest.mark.parametrize(
    ("rules", "resolvable", "name", "address", "allowed"),
    [
        ("db.internal:80", "", "db.internal", "1.1.1.1", True),
        ("db.internal:80", "", "db.internal", "10.0.0.1", False),
        ("db.internal:80", "10.0.0.0/8", "db.internal", "10.0.0.1", True),
        ("db.internal:80", "10.0.0.0/8", "db.internal", "192.168.0.1", False),
        ("db.internal:80", "10.0.0.0/8", "db.internal", "169.254.169.254", False),
        ("db.internal:80 10.0.0.0/8:80", "", "db.internal", "10.0.0.1", True),
        ("db.internal:80 10.0.0.0/8:81", "", "db.internal", "10.0.0.1", False),
        ("localhost:80", "", "localhost", "127.0.0.1", True),
        ("localhost:80", "", "localhost", "::1", True),
        ("localhost:80", "", "localhost", "10.0.0.1", False),
        ("x.localhost:80", "", "x.localhost", "127.0.0.1", True),
        ("*:80", "", "localhost", "1.1.1.1", True),
        ("*:80", "", "localhost", "127.0.0.1", False),
        ("*:*", "", "localhost", "::1", False),
        ("*:80", "", "x.localhost", "127.0.0.1", False),
        ("localhost:80 *:80", "", "x.localhost", "127.0.0.1", False),
        ("*:80 localhost:81", "", "localhost", "127.0.0.1", False),
        ("*:80 localhost:80", "", "LocalHost.", "127.0.0.1", True),
        ("*:80", "", "notlocalhost", "127.0.0.1", False),
        ("*:80 127.0.0.1:80", "", "localhost", "127.0.0.1", True),
        ("*:80 127.0.0.1:80", "", "localhost", "::1", False),
        ("*:80", "127.0.0.0/8", "localhost", "127.0.0.1", True),
        ("db.internal:80", "0.0.0.0/0", "db.internal", "10.0.0.1", False),
    ],
)
def test_names_may_resolve_to_public_addresses_or_to_those_configured(
    rules: str, resolvable: str, name: str, address: str, allowed: bool
) -> None:
    rule = ruleset(rules, resolvable)
    assert rule.check_target(name, 80).allowed
    assert rule.check_address(ip_address(address), 80, name).allowed is allowed


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.0.0.0/8"),
        ("::ffff:172.17.0.2", "172.16.0.0/12"),
        ("fd00::1", "fc00::/7"),
        ("127.0.0.1", ""),  # no name but localhost should lead to the exit's own machine
        ("169.254.169.254", ""),
        ("192.0.2.1", ""),
        ("0.0.0.0", ""),
        ("8.8.8.8", ""),
    ],
)
def test_the_setting_that_lets_a_name_lead_to_a_private_address_is_named(address: str, network: str) -> None:
    rules, found = ruleset("db.internal:80"), ip_address(address)
    clause = rules.resolving_clause(found, 80, "db.internal")
    assert (f'names_may_resolve_to = ["{network}"]' in clause) is bool(network)
    assert bool(clause) is bool(network)
    if network:
        assert ruleset("db.internal:80", network).check_address(found, 80, "db.internal").allowed


def test_a_wildcard_does_not_lead_to_the_exits_own_machine() -> None:
    here = ip_address("127.0.0.1")
    for name in ("evil.example", "localhost", "localhost.", "LOCALHOST", "a.localhost"):
        assert not ruleset("*:80").check_address(here, 80, name).allowed
        assert not ruleset("srv/* *:80").check_found(name, here, 80).allowed  # the owner of the record chose the name
    assert ruleset("*:80 localhost:80").check_found("localhost.", here, 80).allowed
    datagrams = ruleset("udp/*:80 localhost:80").datagrams
    assert not datagrams.check_address(here, 80, "localhost").allowed


def test_a_verdict_gives_its_reason() -> None:
    rules = ruleset("db.internal:80 10.0.0.0/8:22")
    assert rules.check_target("db.internal", 80).text == "allowed by db.internal:80"
    assert rules.check_target("10.0.0.1", 22).text == "allowed by 10.0.0.0/8:22"
    assert rules.check_target("x", 80).text == "no rule allows x:80"
    assert "metadata" in rules.check_target("169.254.169.254", 80).text
    assert rules.check_address(ip_address("127.0.0.1"), 80, "db.internal").text == (
        "db.internal leads to 127.0.0.1, and no rule allows that: 127.0.0.1 is the exit's own machine, which a rule "
        "must name by its address or network"
    )
    assert "no single host" in rules.check_target("0.0.0.0", 80).text
    assert "is not a port" in rules.check_target("db.internal", 0).text
    assert "neither an address nor a name" in rules.check_target("127.1", 80).text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("db.internal", "is not a rule"),
        (":80", "is not a rule"),
        ("", "is not a rule"),
        ("db.internal:", "a port is a number"),
        ("db.internal:0", "a port is a number"),
        ("db.internal:65536", "a port is a number"),
        ("db.internal:http", "a port is a number"),
        ("db.internal:-1", "a port is a number"),
        ("fd00::1:22", "brackets"),
        ("http://db.internal:80", "is a URL: write HOST:PORT"),
        ("https://db.internal", "is a URL: write HOST:PORT"),
        ("udp/http://[::1]:80", "is a URL: write HOST:PORT"),
        ("10.0.0.1/8:22", "did you mean 10.0.0.0/8?"),
        ("10.0.0/8:22", "is not a network"),
        ("[db.internal]:22", "is not a network"),
        ("*.internal:22", "neither an address nor a name"),
        ("db.*:22", "neither an address nor a name"),
        ("127.1:22", "neither an address nor a name"),
        ("10.0.0.0/33:22", "is not a network"),
        ("unix:", "write the whole path of the socket"),
        ("unix:run/a", "write the whole path of the socket"),
        ("unix:/run/../a", "write the whole path of the socket"),
        ("unix:/run//a", "write the whole path of the socket"),
        ("unix://run", "write the whole path of the socket"),
        ("unix:/run/a/", "write the whole path of the socket"),
        ("unix:/run/a\0", "write the whole path of the socket"),
        ("unix:/" + "a" * 107, "has at most 107 bytes"),
        ("srv/", "names no SRV record: write it as in srv/_postgres._tcp.example"),
        ("srv/db.example", "names no SRV record"),
        ("srv/_db._tcp.example:5432", "names no SRV record"),
    ],
)
def test_a_malformed_rule_is_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        parse_rule(text)


def test_rules_for_datagrams_are_separate() -> None:
    rules = Ruleset(map(parse_rule, ("db.internal:5432", "udp/10.0.0.53:53", "udp/ns.internal:*", "udp/[fd00::/8]:53")))
    assert [rule.text for rule in rules.datagrams.rules] == [
        "udp/10.0.0.53:53",
        "udp/ns.internal:*",
        "udp/[fd00::/8]:53",
    ]
    assert rules.datagrams.datagrams is rules.datagrams
    assert rules.check_target("udp:10.0.0.53", 53) == Ruling(True, "allowed by udp/10.0.0.53:53", "udp/10.0.0.53:53")
    assert rules.check_target("udp:fd00::1", 53).allowed
    assert rules.check_target("udp:NS.internal.", 99).allowed
    assert rules.check_target("10.0.0.53", 53).text.startswith("no rule allows 10.0.0.53:53")
    assert rules.check_target("udp:db.internal", 5432) == Ruling(False, "no rule allows udp/db.internal:5432")
    assert rules.check_target("udp:10.0.0.54", 53).text.startswith("no rule allows udp/10.0.0.54:53")
    assert not rules.check_target("udp:udp:10.0.0.53", 53).allowed


def test_unix_sockets_and_srv_records_need_rules_of_their_own() -> None:
    rules = Ruleset(map(parse_rule, ("unix:/run/db", "srv/_db._tcp.Example.", "udp/srv/_ntp._udp.example")))
    for host, text in (
        ("unix:/run/db", "allowed by unix:/run/db"),
        ("srv:_DB._tcp.example", "allowed by srv/_db._tcp.Example."),
        ("udp:srv:_ntp._udp.example", "allowed by udp/srv/_ntp._udp.example"),
        ("unix:/run/d", "no rule allows unix:/run/d"),
        ("unix:", "no rule allows unix:"),
        ("srv:_ntp._udp.example", "no rule allows srv/_ntp._udp.example"),
        ("udp:srv:_db._tcp.example", "no rule allows udp/srv/_db._tcp.example"),
        ("udp:unix:/run/db", "no rule allows unix:/run/db"),
        ("srv:", "no rule allows srv/"),
    ):
        rule = text.partition("allowed by ")[2]
        assert rules.check_target(host, 1) == Ruling(bool(rule), text, rule), host
    assert Ruleset([parse_rule("srv/*")]).check_target("srv:_any._tcp.example", 1).allowed
    for host, rule in (
        ("unix:/run/x", "unix:/run/x"),
        ("unix:x", ""),
        ("srv:_x._tcp.example", "srv/_x._tcp.example"),
        ("udp:srv:_x._udp.example", "udp/srv/_x._udp.example"),
        ("udp:unix:/run/x", ""),
        ("srv:x", ""),
    ):
        assert rules.missing_rule(host, 1) == rule, host


@pytest.mark.parametrize("text", ["udp/unix:/run/a", "udp/", "udp/db.internal", "udp/udp/x:1", "tcp/db.internal:1"])
def test_malformed_rules_for_datagrams_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|neither|is not a network"):
        parse_rule(text)


def test_the_denial_of_an_ipv6_address_names_it_as_people_write_it() -> None:
    assert Ruleset(()).check_target("2a00::1", 22).text == "no rule allows [2a00::1]:22"


def test_a_ruling_on_an_address_is_remembered_with_its_port_and_its_name() -> None:
    rules = ruleset("10.0.0.0/8:22 db.internal:5432", "10.1.0.0/16")
    inside = ip_address("10.1.0.1")
    for _ in range(2):
        assert rules.check_address(inside, 22).allowed
        assert not rules.check_address(inside, 5432).allowed
        assert rules.check_address(inside, 5432, "db.internal").allowed
        assert not rules.datagrams.check_address(inside, 22).allowed


def test_a_user_who_asks_for_many_addresses_fills_no_memory() -> None:
    rules = ruleset("10.0.0.0/8:22")
    for number in range(1000):
        assert rules.check_address(ip_address(0x0A000000 + number), 22).allowed
    assert len(rules._known) <= 64
