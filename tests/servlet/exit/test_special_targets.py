"""Targets of the exit that are not hosts: Unix sockets, and the hosts and ports in SRV records."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.servlet.exit.rig import addresses, close, echo, tunnel, two_clients
from tests.support.loops import in_loop
from tests.support.targets import target, unix_target
from tunnel import DeniedError, RefusedError, TunnelError
from tunnel_servlet.access.rules import Ruleset, parse_rule
from tunnel_servlet.exit.resolver import find_records

RECORD = "srv:_db._tcp.example"
FindRecords = Callable[[str], Coroutine[Any, Any, list[tuple[str, int]]]]


def records(*found: tuple[str, int]) -> FindRecords:
    async def answer(name: str) -> list[tuple[str, int]]:
        assert name == "_db._tcp.example"
        return list(found)

    return answer


def test_a_unix_socket_is_reached_by_exactly_its_path(tmp_path: Path) -> None:
    path = f"{tmp_path}/s"

    @in_loop
    async def scenario() -> None:
        os.symlink(path, f"{tmp_path}/link")
        async with unix_target(echo, path), tunnel(f"unix:{path}", "*:*") as (client, dialer):
            reader, writer = await client.open_connection(f"unix:{path}", 1)
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read(-1) == b"hello"
            await close(writer)
            for other in (f"{path}x", f"{tmp_path}/link", f"{tmp_path}/../{tmp_path.name}/s", path[1:], "", "*"):
                with pytest.raises(DeniedError, match="no rule allows unix:"):
                    await client.open_connection(f"unix:{other}", 1)
            with pytest.raises(DeniedError):
                await client.open_connection(f"udp:unix:{path}", 1)
        assert dialer.connections == 0

    scenario()


def test_a_rule_for_any_host_opens_no_unix_socket() -> None:
    rules = Ruleset([parse_rule("*:*"), parse_rule("0.0.0.0/0:*")])
    assert not rules.check_target("unix:/run/x", 1).allowed
    assert not rules.check_target("srv:_x._tcp.example", 1).allowed


def test_a_path_on_which_nothing_listens_is_refused(tmp_path: Path) -> None:
    @in_loop
    async def scenario() -> None:
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        rules = [f"unix:{tmp_path}/{name}" for name in ("missing", "file", "folder")]
        async with tunnel(*rules) as (client, _):
            for rule in rules:
                with pytest.raises(RefusedError, match="nothing listens on"):
                    await client.open_connection(rule, 1)

    scenario()


def test_a_removed_rule_ends_the_connection_to_a_unix_socket(tmp_path: Path) -> None:
    path = f"{tmp_path}/s"

    @in_loop
    async def scenario() -> None:
        async with unix_target(echo, path), two_clients(f"unix:{path}") as (ann, bob, dialer):
            one, writer = await ann.open_connection(f"unix:{path}", 1)
            other, kept = await bob.open_connection(f"unix:{path}", 1)
            before, after = Ruleset([parse_rule(f"unix:{path}")]), Ruleset([])
            dialer._rules_of = lambda user: before if user == "bob" else after
            list(dialer.recheck())
            with pytest.raises(TunnelError, match="the rules of the exit were changed"):
                await one.read(1)
            kept.write(b"x")
            assert await other.readexactly(1) == b"x"
            writer.close()
            await close(kept)

    scenario()


@in_loop
async def test_a_record_leads_to_the_first_of_its_hosts_that_accepts() -> None:
    async with target(echo) as port:
        found = records(("old.example", 9), ("db.example", port))
        rules = ("srv/_db._tcp.example", f"db.example:{port}", "127.0.0.1:*")
        async with tunnel(*rules, resolve=addresses("127.0.0.1"), find_records=found) as (client, _):
            reader, writer = await client.open_connection(RECORD, 1)
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read(-1) == b"hello"
            await close(writer)


@pytest.mark.parametrize(
    "rules",
    [
        ("db.example:*", "127.0.0.1:*"),  # no rule for the record
        ("srv/_db._tcp.example",),  # no rule for the host that it names
        ("srv/_db._tcp.example", "db.example:1", "127.0.0.1:1"),  # these rules are for another port
        ("srv/_db._tcp.example", "db.example:*"),  # the name leads to a loopback address
        ("srv/_db._tcp.example", "*:*"),
        ("udp/srv/_db._tcp.example", "127.0.0.1:*"),  # the rule is for datagrams
        ("srv/_other._tcp.example", "127.0.0.1:*"),
    ],
)
def test_a_record_leads_nowhere_unless_rules_allow_the_record_and_its_host(rules: tuple[str, ...]) -> None:
    @in_loop
    async def scenario() -> None:
        async with target(echo) as port:
            found = records(("db.example", port))
            async with tunnel(*rules, resolve=addresses("127.0.0.1"), find_records=found) as (client, _):
                with pytest.raises(DeniedError) as caught:
                    await client.open_connection(RECORD, 1)
                assert "127.0.0.1" not in str(caught.value)  # private addresses of names stay private

    scenario()


@in_loop
async def test_a_rule_for_a_network_allows_the_addresses_to_which_a_record_leads() -> None:
    async with target(echo) as port:
        found = records(("db.example", port))
        rules = ("srv/_db._tcp.example", "127.0.0.0/8:*")
        async with tunnel(*rules, resolve=addresses("127.0.0.1"), find_records=found) as (client, dialer):
            reader, writer = await client.open_connection(RECORD, 1)
            list(dialer.recheck())  # the present rules still allow it
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            ruleset = Ruleset([parse_rule("srv/_db._tcp.example")])
            dialer._rules_of = lambda user: ruleset
            list(dialer.recheck())
            with pytest.raises(TunnelError, match="the rules of the exit were changed"):
                await reader.read(1)
            writer.close()


@in_loop
async def test_a_record_that_cannot_be_found_is_refused_with_the_reason() -> None:
    trouble = "the name servers do not answer: Server Do53:10.0.0.2@53 answered SERVFAIL"

    async def fails(name: str) -> list[tuple[str, int]]:
        raise OSError(trouble)

    for find, text in ((records(), "has no SRV record"), (fails, "the name servers did not answer; the log")):
        async with tunnel("srv/_db._tcp.example", find_records=find) as (client, _):
            with capture_logs() as logs, pytest.raises(RefusedError, match=text) as refused:
                await client.open_connection(RECORD, 1)
            assert "10.0.0.2" not in str(refused.value)  # users do not learn the exit's name servers
            told = [line["text"] for line in logs if line["event"] == "no_records"]
            assert told == ([trouble] if find is fails else [])


@in_loop
async def test_a_record_whose_hosts_have_no_addresses_is_refused() -> None:
    async def missing(host: str, port: int) -> list[Any]:
        raise OSError

    find = records(("gone.example", 1))
    async with tunnel("srv/_db._tcp.example", resolve=missing, find_records=find) as (client, _):
        with pytest.raises(RefusedError, match="no host in the SRV record of _db"):
            await client.open_connection(RECORD, 1)


class _Nameserver(asyncio.DatagramProtocol):
    """Answers every question with the SRV records that it was given, as a name server does."""

    def __init__(self, *rows: str) -> None:
        self._rows = rows

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        import dns.message
        import dns.rcode
        import dns.rrset

        question = dns.message.from_wire(data)
        answer = dns.message.make_response(question)
        if self._rows:
            answer.answer.append(dns.rrset.from_text(question.question[0].name, 1, "IN", "SRV", *self._rows))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), addr)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (("20 0 5433 b.example.", "10 0 5432 a.example."), [("a.example", 5432), ("b.example", 5433)]),
        (("0 0 0 .",), []),  # RFC 2782: the service is not available there
        ((), []),
    ],
)
def test_records_are_found_in_the_order_of_rfc_2782(
    rows: tuple[str, ...], found: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dns.resolver

    @in_loop
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Nameserver(*rows), local_addr=("127.0.0.1", 0))
        asking = dns.resolver.Resolver(configure=False)
        asking.nameservers, asking.port = ["127.0.0.1"], transport.get_extra_info("sockname")[1]
        monkeypatch.setattr(dns.resolver, "default_resolver", asking)
        assert await find_records("_db._tcp.example") == found
        transport.close()

    scenario()
