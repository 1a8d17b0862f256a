"""The grants of users: targets, services, names to listen under, and being an exit."""

import pytest

from tunnel.wire import RejectReason, Target, TargetKind
from tunnel_servlet.access.grants import EXIT_USER, Grant, GrantTable
from tunnel_servlet.access.rules import parse_network, parse_rule
from tunnel_servlet.access.sso import Member
from tunnel_servlet.config import parse_config
from tunnel_servlet.switch.decisions import Deny, Hand, HandTo

DB = Target(TargetKind.TCP, "db.internal", 5432)
REPORTS = Target(TargetKind.SERVICE, "reports")


def connect(*rules: str) -> Grant:
    return Grant(connect=tuple(map(parse_rule, rules)))


def test_by_default_nothing_is_allowed() -> None:
    table = GrantTable()
    assert table.is_empty
    assert isinstance(table.authorise("ann", DB), Deny)
    assert isinstance(table.authorise("ann", REPORTS), Deny)
    assert not table.may_listen("ann", "reports")
    assert not table.is_exit("ann")


def test_each_user_has_only_his_own_grants() -> None:
    table = GrantTable(
        {"ann": connect("db.internal:5432"), "bob": Grant(services=("reports",), listen=("x",), exit=True)}
    )
    assert table.authorise("ann", DB) == Hand(HandTo.EXIT, rule="db.internal:5432")
    denied = table.authorise("bob", DB)
    assert isinstance(denied, Deny)
    assert denied.reason == RejectReason.DENIED
    assert denied.text.startswith("no rule allows db.internal:5432; ")
    assert table.authorise("bob", REPORTS) == Hand(HandTo.SERVICE, rule="reports")
    assert isinstance(table.authorise("ann", REPORTS), Deny)
    assert (table.may_listen("bob", "x"), table.may_listen("bob", "y"), table.may_listen("ann", "x")) == (1, 0, 0)
    assert (table.is_exit("bob"), table.is_exit("ann")) == (True, False)
    assert table.users == ["ann", "bob"]
    assert not table.is_empty


def test_the_rule_of_a_service_is_its_name_or_the_star() -> None:
    table = GrantTable({"ann": Grant(services=("reports", "*")), "bob": Grant(services=("*",))})
    found = [table.authorise(user, REPORTS) for user in ("ann", "bob")]
    assert found == [Hand(HandTo.SERVICE, rule="reports"), Hand(HandTo.SERVICE, rule="*")]


def test_grants_for_everyone_are_added_to_those_of_each_user() -> None:
    table = GrantTable({"ann": connect("db.internal:5432")}, Grant(connect=(parse_rule("web:80"),), services=("*",)))
    web = Target(TargetKind.TCP, "web", 80)
    assert isinstance(table.authorise("ann", DB), Hand)
    assert isinstance(table.authorise("ann", web), Hand)
    assert isinstance(table.authorise("stranger", web), Hand)
    assert isinstance(table.authorise("stranger", DB), Deny)
    assert isinstance(table.authorise("stranger", REPORTS), Hand)
    assert table.rules_of("stranger") is table.rules_of("another")


def test_the_inline_exit_is_an_exit_and_nothing_else() -> None:
    table = GrantTable({"ann": connect("db.internal:5432")})
    assert table.is_exit(EXIT_USER)
    assert isinstance(table.authorise(EXIT_USER, DB), Deny)


def test_the_rules_apply_to_unknown_kinds_of_targets_too() -> None:
    assert isinstance(GrantTable().authorise("ann", Target(9, "x", 0)), Deny)  # type: ignore[arg-type]


def test_rules_on_the_command_line_apply_to_every_user() -> None:
    table = GrantTable({"ann": Grant()}, resolvable=[parse_network("10.0.0.0/8")]).with_rules(
        [parse_rule("db.internal:5432")]
    )
    assert isinstance(table.authorise("ann", DB), Hand)
    assert isinstance(table.authorise("bob", DB), Hand)
    assert not table.may_listen("ann", "x")
    for user in ("ann", "bob"):  # names_may_resolve_to holds beside the command line's rules, too
        rules = table.rules_of(user)
        assert rules.check_address(parse_network("10.0.0.7").network_address, 5432, "db.internal").allowed
        assert not rules.check_address(parse_network("192.168.0.7").network_address, 5432, "db.internal").allowed


REACHED = "127.0.0.1 10.0.0.1 ::1 fd00::1 1.1.1.1 example.com"
NEVER = "169.254.169.254 169.254.1.1 fe80::1 fd00:ec2::254 100.100.100.200 0.0.0.0 127.1"


@pytest.mark.parametrize("host", [*REACHED.split(), *NEVER.split()])
def test_an_open_relay_allows_names_and_public_private_and_loopback_addresses_only(host: str) -> None:
    table = GrantTable().with_rules([], allows_all=True)
    assert not table.is_empty
    assert isinstance(table.authorise("open", Target(TargetKind.TCP, host, 80)), Hand) == (host in REACHED.split())
    assert isinstance(table.authorise("open", REPORTS), Hand)
    assert table.may_listen("open", "reports")


ADVICE = "in the relay's configuration, this line would allow it:"


@pytest.mark.parametrize(
    ("user", "target", "clause"),
    [
        ("eve", DB, f'under [users.eve] {ADVICE} connect = ["db.internal:5432"]'),
        ("ann", DB, f'under [users.ann] {ADVICE} connect = ["web:80", "db.internal:5432"]'),
        ("a.b@c", DB, f'under [users."a.b@c"] {ADVICE} connect = ["db.internal:5432"]'),
        ("ann", REPORTS, f'under [users.ann] {ADVICE} services = ["x", "reports"]'),
        ("eve", Target(TargetKind.TCP, "udp:Dns.Internal.", 53), f'{ADVICE} connect = ["udp/dns.internal:53"]'),
        ("eve", Target(TargetKind.TCP, "10.0.0.1", 22), f'{ADVICE} connect = ["10.0.0.1:22"]'),
        ("eve", Target(TargetKind.TCP, "fd00::1", 22), f'{ADVICE} connect = ["[fd00::1]:22"]'),
        ("eve", Target(TargetKind.SERVICE, 'a"\\\n'), 'services = ["a\\"\\\\\\U0000000a"]'),
        ("crowd", REPORTS, f'under [users.crowd] {ADVICE} services = [..., "reports"]'),
    ],
)
def test_a_denial_prints_the_line_that_would_allow_it(user: str, target: Target, clause: str) -> None:
    crowd = Grant(services=tuple(f"service-{number}" for number in range(30)))
    ann = Grant(connect=(parse_rule("web:80"),), services=("x",))
    denied = GrantTable({"ann": ann, "crowd": crowd}).authorise(user, target)
    assert isinstance(denied, Deny)
    assert denied.text.startswith("no rule allows ")
    assert denied.text.endswith(clause)
    if "..." not in clause:
        table, line = denied.text.partition("under ")[2].split(f" {ADVICE} ")
        grants = parse_config(f"{table}\n{line}\n", "r.toml").grants
        assert isinstance(grants.authorise(user, target), Hand)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.1"])
def test_a_target_that_no_rule_can_allow_is_denied_without_a_line(host: str) -> None:
    denied = GrantTable().authorise("ann", Target(TargetKind.TCP, host, 80))
    assert isinstance(denied, Deny)
    assert "this line" not in denied.text


def test_an_open_relay_allows_services_beside_rules_for_targets() -> None:
    table = GrantTable().with_rules([parse_rule("web:80")], is_open=True, allows_services=True)
    assert isinstance(table.authorise("open", REPORTS), Hand)
    assert table.may_listen("open", "reports")
    denied = table.authorise("open", DB)
    assert isinstance(denied, Deny)
    assert denied.text == (
        "no rule allows db.internal:5432; starting the relay with --allow db.internal:5432 would allow it"
    )


def test_an_open_relay_without_services_prints_the_line_for_everyone() -> None:
    denied = GrantTable(everyone=Grant(services=("x",))).with_rules([], is_open=True).authorise("open", REPORTS)
    assert isinstance(denied, Deny)
    assert denied.text.endswith(f'under [everyone] {ADVICE} services = ["x", "reports"]')


ANY_NAME = Grant(listen=("*",))
REPORTS_NAME = Grant(listen=("reports",))


def test_two_users_a_name_that_one_of_them_lists_belongs_to_that_one() -> None:
    table = GrantTable({"rita": REPORTS_NAME, "eve": ANY_NAME}, everyone=Grant(listen=("reports",)))
    assert [table.may_listen(user, "reports") for user in ("rita", "eve", "stranger")] == [True, False, False]
    assert [table.may_listen(user, "news") for user in ("rita", "eve")] == [False, True]
    assert table.owners("reports") == ["rita"]


def test_two_users_who_list_a_name_share_it_and_others_do_not() -> None:
    table = GrantTable({"rita": REPORTS_NAME, "nora": REPORTS_NAME, "eve": ANY_NAME, "ann": ANY_NAME})
    assert [table.may_share(user, "reports") for user in ("rita", "nora", "eve")] == [True, True, False]
    assert [table.may_listen(user, "news") for user in ("eve", "ann")] == [True, True]
    assert [table.may_share(user, "news") for user in ("eve", "ann")] == [False, False]
    assert table.owners("news") == []


def test_the_users_of_a_file_own_no_name_at_an_open_relay() -> None:
    """Their rules are not used there: every client is the same user."""
    table = GrantTable({"rita": REPORTS_NAME}, everyone=REPORTS_NAME).with_rules([], is_open=True)
    assert table.may_listen("open", "reports")


RATES = """
[everyone]
rate = "20 MiB/s"
connect = ["*:443"]
[everyone.rates]
"*:443" = "1 MiB/s"
[users.ann]
connect = ["db.internal:5432", "10.0.0.0/8:5432", "udp/dns.internal:53"]
services = ["reports"]
rate = "5 MiB/s"
[users.ann.rates]
"10.0.0.0/8:5432" = "2 MiB/s"
reports = "64 KiB/s"
"udp/dns.internal:53" = "32 KiB/s"
[users.bob]
listen = ["reports"]
[users.bob.rates]
reports = "128 KiB/s"
"""


@pytest.mark.parametrize(
    ("user", "target", "rates"),
    [
        ("ann", DB, {"": 5 << 20}),
        ("ann", Target(TargetKind.TCP, "10.1.2.3", 5432), {"": 5 << 20, "10.0.0.0/8:5432": 2 << 20}),
        ("ann", Target(TargetKind.TCP, "web.example", 443), {"": 5 << 20, "*:443": 1 << 20}),
        ("ann", REPORTS, {"": 5 << 20, "reports": 64 << 10}),
        ("ann", Target(TargetKind.TCP, "udp:dns.internal", 53), {"": 5 << 20, "udp/dns.internal:53": 32 << 10}),
        ("ann", Target(TargetKind.TCP, "dns.internal", 53), {"": 5 << 20}),
        ("bob", REPORTS, {"": 20 << 20, "reports": 128 << 10}),
        ("bob", Target(TargetKind.SERVICE, "other"), {"": 20 << 20}),
        ("eve", Target(TargetKind.TCP, "web.example", 443), {"": 20 << 20, "*:443": 1 << 20}),
    ],
)
def test_connections_have_the_rates_of_their_user_and_of_the_rules_that_allow_them(
    user: str, target: Target, rates: dict[str, int]
) -> None:
    assert parse_config(RATES, "relay.toml").grants.rates_of(user, target) == rates


def test_without_rates_nothing_is_limited() -> None:
    assert GrantTable({"ann": connect("db.internal:5432")}).rates_of("ann", DB) == {}


SECRET = Target(TargetKind.TCP, "secret.internal", 22)


def same_names() -> GrantTable:
    """A user and a group of one name, groups whose names together are that of a third, and the members of each."""
    secret = connect("secret.internal:22")
    table = GrantTable(
        {"staff": secret, "a": secret, "groups": secret},
        groups={
            "staff": connect("db.internal:5432"),
            "a": connect("db.internal:5432"),
            "b": connect("web:80"),
            "a\nb": secret,
            "": secret,
            "user": connect("web:80"),
        },
    )
    for user, groups in MEMBERS.items():
        table.members.join(Member(user, groups, 100, 0), 0)
    return table


MEMBERS: dict[str, tuple[str, ...]] = {
    "sso:eve": ("staff",),
    "sso:one": ("a",),
    "sso:two": ("a", "b"),
    "sso:three": ("a\nb",),
    "sso:empty": ("",),
    "sso:four": ("user", "staff"),  # a user's name and the kind of another holder
    "sso:none": ("unknown",),
}
ALLOWED: dict[str, set[str]] = {
    "staff": {"secret.internal"},
    "a": {"secret.internal"},
    "groups": {"secret.internal"},
    "sso:eve": {"db.internal"},
    "sso:one": {"db.internal"},
    "sso:two": {"db.internal", "web"},
    "sso:three": {"secret.internal"},
    "sso:empty": {"secret.internal"},
    "sso:four": {"db.internal", "web"},
    "sso:none": set(),
    "stranger": set(),
}


@pytest.mark.parametrize("first", ALLOWED)
def test_two_users_neither_gets_the_rules_of_a_name_that_is_also_a_groups(first: str) -> None:
    for second in ALLOWED:
        table = same_names()
        for user in (first, second):
            found = {
                target.host
                for target in (SECRET, DB, Target(TargetKind.TCP, "web", 80))
                if isinstance(table.authorise(user, target), Hand)
            }
            assert found == ALLOWED[user]


@pytest.mark.parametrize("order", [["staff", "sso:eve"], ["sso:eve", "staff"]])
def test_two_users_neither_has_the_rates_of_a_name_that_is_also_a_groups(order: list[str]) -> None:
    table = GrantTable(
        {"staff": Grant(connect=(parse_rule("db.internal:5432"),), rates=(("db.internal:5432", 1),))},
        groups={"staff": Grant(connect=(parse_rule("db.internal:*"),), rates=(("db.internal:*", 2),))},
    )
    table.members.join(Member("sso:eve", ("staff",), 100, 0), 0)
    expected = {"staff": {"db.internal:5432": 1}, "sso:eve": {"db.internal:*": 2}}
    for user in order:
        assert table.rates_of(user, DB) == expected[user]


def test_members_of_the_same_groups_share_their_rules_in_any_order_and_number() -> None:
    table = GrantTable(groups={"a": Grant(rates=(("x", 1),)), "b": Grant(rates=(("x", 2),))})
    lists = [("a", "b"), ("b", "a"), ("b", "a", "b", "unknown")]
    for number, groups in enumerate(lists):
        table.members.join(Member(f"sso:{number}", groups, 100, 0), 0)
    users = [f"sso:{number}" for number in range(len(lists))]
    assert len({id(table.rules_of(user)) for user in users}) == 1
    assert [table.groups_of(user) for user in users] == [["a", "b"]] * len(lists)
    assert [table.rates_of(user, Target(TargetKind.SERVICE, "x")) for user in users] == [{"x": 2}] * len(lists)
