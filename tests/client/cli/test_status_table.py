"""Status reports as text for people."""

from typing import Any

import msgspec
import pytest

from tunnel_client.cli.status_table import Rates, render
from tunnel_client.status import ClientReport, ConnectionReport, EntryReport, MoveLine, RelayLine, RoadLine


def connection(number: int = 1, **changes: Any) -> ConnectionReport:
    usual: dict[str, Any] = {
        "target": "db.internal:5432",
        "bytes_up": 2048,
        "bytes_down": 300 << 20,
        "srtt_us": 30,
        "round_trip_us": 12_300,
        "rto_us": 1_200_000,
        "packets_sent": 40,
        "packets_resent": 2,
        "packets_in_flight": 3,
        "bytes_queued": 100,
        "bytes_unread": 0,
        "peer_window_bytes": 65536,
    }
    return ConnectionReport(id=number, **{**usual, **changes})


def client(*connections: ConnectionReport, **changes: Any) -> ClientReport:
    report = ClientReport(77, "forward 5432:db.internal:5432", 1000.0, True, "link", "", 1, list(connections))
    return msgspec.structs.replace(report, **changes)


def test_a_client_is_shown_with_its_connections() -> None:
    assert render([client(connection())], 1090.0) == (
        "forward 5432:db.internal:5432  (process 77, for 90 s)\n"
        "  attached: link; batches on their way: 1\n"
        "  TARGET                 UP     DOWN      RTT    RTO  SENT  RESENT  QUEUED  IN FLIGHT  UNREAD  ENCRYPTED\n"
        "  db.internal:5432  2.0 KiB  300 MiB  12.3 ms  1.2 s    40       2   100 B          3     0 B         no\n"
    )


def test_several_clients_are_shown_with_their_trouble() -> None:
    text = render([client(attached=False, trouble="HTTP 503\x1b[2J"), client(started_s=-9000.0)], 1300.0)
    assert text == (
        "forward 5432:db.internal:5432  (process 77, for 5 min)\n"
        "  NOT ATTACHED: link; batches on their way: 1\n"
        "  trouble: HTTP 503\\x1b[2J\n"
        "  no connections\n"
        "\n"
        "forward 5432:db.internal:5432  (process 77, for 2.9 h)\n"
        "  attached: link; batches on their way: 1\n"
        "  no connections\n"
    )


def test_the_entries_of_a_file_are_shown_with_their_errors() -> None:
    entries = [
        EntryReport("forward db", "127.0.0.1:1 -> db:1", "serving", "db:1: refused\x1b", 1, 14, 2, 2048, 5),
        EntryReport("proxy a", "proxy on 127.0.0.1:1080", "failed", "cannot listen"),
        EntryReport("expose b", "b -> 127.0.0.1:2", "waiting"),
    ]
    assert render([client(command="up t.toml", entries=entries)], 1090.0) == (
        "up t.toml  (process 77, for 90 s)\n"
        "  attached: link; batches on their way: 1\n"
        "  forward db  127.0.0.1:1 -> db:1      1 open, 14 in all, 2 failed; up 2.0 KiB, down 5 B\n"
        "    latest failure: db:1: refused\\x1b\n"
        "  proxy a     proxy on 127.0.0.1:1080  FAILED: cannot listen\n"
        "  expose b    b -> 127.0.0.1:2         waiting\n"
        "  no connections\n"
    )


def test_rates_appear_from_the_second_report_on() -> None:
    rates = Rates()
    before, after = client(connection()), client(connection(bytes_up=4096, bytes_down=301 << 20), connection(2))
    rates.note([before], 0.0)
    assert rates.of(before, before.connections[0]) == (None, None)
    first = render([before], 1000.0, rates).splitlines()
    assert first[2].split()[:5] == ["TARGET", "UP", "DOWN", "UP/s", "DOWN/s"]
    assert first[3].split()[5:7] == ["-", "-"]
    rates.note([after], 2.0)
    assert rates.of(after, after.connections[0]) == (1024.0, float(1 << 19))
    assert rates.of(after, after.connections[1]) == (None, None)


def test_the_busiest_connections_come_first_and_the_rest_is_counted() -> None:
    crowd = client(*(connection(number, bytes_up=number << 40, target=f"t{number}") for number in range(5)))
    lines = render([crowd], 1000.0, rows_max=2).splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["t4", "t3", "and"]
    assert lines[-1] == "  and 3 more"
    assert "4.0 TiB" in lines[3]


def test_long_names_are_cut_and_a_missing_name_is_a_number() -> None:
    text = render([client(connection(target="x" * 50), connection(9, target="", round_trip_us=0))], 1000.0)
    assert "x" * 39 + "~" in text
    assert "connection 9 " in text
    assert " - " in text


@pytest.mark.parametrize(
    ("round_trip_us", "shown"), [(0, "-"), (7, "0.01 ms"), (94, "0.09 ms"), (100, "0.1 ms"), (1_000_000, "1.0 s")]
)
def test_no_time_is_shown_as_nothing_unless_it_is_unknown(round_trip_us: int, shown: str) -> None:
    row = render([client(connection(round_trip_us=round_trip_us))], 1000.0).splitlines()[-1]
    assert f" MiB {shown} 1.2 s " in " ".join(row.split())


def test_roads_are_shown_with_the_reason_why_they_do_not_carry() -> None:
    roads = [RoadLine("link", "resting", 2, "HTTP 404\x1b[2J: " + "x" * 200), RoadLine("websocket", "used", 1)]
    line = render([client(roads=[*roads, RoadLine("third", "unknown")])], 1090.0).splitlines()[2]
    why = f"HTTP 404\\x1b[2J: {'x' * 86}"
    assert line == f"  roads: link resting (2 tries; {why}), websocket used (1 try), third unknown"


def test_several_relays_are_shown_with_what_they_carry() -> None:
    relays = [
        RelayLine("https://a", False, False, "poll https://a", "the connection was\nrefused", 2),
        RelayLine("https://b", True, True, "link https://b", "", 1),
        RelayLine("https://c", True, False, "link https://c", "", 0),
        RelayLine("https://d", False, False, "poll https://d", "no such token", 0, True),
    ]
    relays[2].services_refused = {"reports": "reports: another user has\x1b it"}
    lines = render([client(relays=relays, trouble="said below")], 1090.0).splitlines()[2:7]
    assert lines == [
        "  relay https://a: NOT ATTACHED, poll, 2 connections; the connection was refused",
        "  relay https://b: in use, link, 1 connection",
        "  relay https://c: attached, link, 0 connections",
        "    does not take reports: another user has\\x1b it",
        "  relay https://d: REFUSED, poll, 0 connections; no such token",
    ]
    assert "said below" not in "".join(lines)


def test_a_relay_that_does_not_answer_is_not_in_use() -> None:
    line = render([client(relays=[RelayLine("https://a", False, True, "poll", "lost", 1)])], 1090.0).splitlines()[2]
    assert line == "  relay https://a: NOT ATTACHED, poll, 1 connection; lost"


def test_the_latest_moves_are_shown_and_where_each_connection_is() -> None:
    targets = ["db0:1", "db1:1", "db2:1", "db3:1", ""]
    moves = [MoveLine(1000.0 + n, n, one, "https://a", "https://b\x1b", "why") for n, one in enumerate(targets)]
    relays = [RelayLine("https://a", False, False, "poll", "", 0), RelayLine("https://b", True, True, "link", "", 1)]
    one = connection()
    one.relay = "https://b/prefix"
    lines = render([client(one, relays=relays, moves=moves, moves_count=9)], 1064.0).splitlines()[4:]
    assert lines[:4] == [
        "  moves to another relay: 9",
        "    60 s ago: connection 4, https://a -> https://b\\x1b; why",
        "    61 s ago: db3:1, https://a -> https://b\\x1b; why",
        "    62 s ago: db2:1, https://a -> https://b\\x1b; why",
    ]
    assert [line.split()[-1] for line in lines[4:]] == ["RELAY", "b"]
    assert "cannot leave" not in "".join(lines)
    assert "RELAY" not in render([client(one)], 1064.0)


def test_why_connections_do_not_move_is_said_once_for_each_reason() -> None:
    relays = [RelayLine("https://a", False, False, "poll", "", 3), RelayLine("https://b", True, True, "link", "", 0)]
    many = [connection(n, relay="https://a", stays="not\nknown\x1b") for n in (1, 2)]
    many += [connection(n, relay="https://a", stays=f"why {n}") for n in (3, 4, 5)]
    lines = [line for line in render([client(*many, relays=relays)], 1064.0).splitlines() if "cannot leave" in line]
    assert lines == [
        "  2 connections cannot leave https://a: not known\\x1b",
        "  1 connection cannot leave https://a: why 3",
        "  1 connection cannot leave https://a: why 4",
    ]
