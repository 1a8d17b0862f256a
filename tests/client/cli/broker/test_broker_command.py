"""`tunnel-broker`: a broker in a process of its own, the commands that look at it, and their exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, relay_command, says_event
from tests.messages.streams import served
from tests.support.loops import in_loop
from tunnel import attach
from tunnel.ground.exit_codes import DENIED, LOST, OK, UNREACHABLE, USAGE
from tunnel.messages import (
    BrokerClient,
    ByteBufferMessageSet,
    ChannelTable,
    Codec,
    Message,
    RemoteCallError,
    Request,
    Response,
    TopicSpec,
)
from tunnel.messages.broker.protocol import DELETE_GROUP, DELETE_TOPIC, METRICS, NOT_ALLOWED
from tunnel.messages.sets.message import encode_message
from tunnel.messages.topics.requests import ProduceRequest
from tunnel_client.cli.broker.main import main, make_parser
from tunnel_client.cli.broker.serve import parse_topic
from tunnel_client.errors import UsageError


class Running(NamedTuple):
    address: str
    process: Process
    directory: Path


def serving(directory: Path, *options: str) -> Process:
    command = python_command("tunnel_client.cli.broker", "serve", "--dir", str(directory), *options)
    return Process(command, ready=says_event("listening"))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A broker with ten messages in partition 0 of `orders`. There the group `billing` has position 4."""
    with (
        hold_port() as port,
        serving(tmp_path, "--listen", f"127.0.0.1:{port}", "--topic", "orders:2", "--json") as process,
    ):
        address = f"127.0.0.1:{port}"

        async def fill() -> None:
            async with ChannelTable() as table:
                client = BrokerClient(table, address)
                await client.producer().send("orders", *(b"%d" % number for number in range(9)), b"\xff", partition=0)
                await client.commit("billing", "orders", 0, 4)

        asyncio.run(fill())
        yield Running(address, process, tmp_path)


def say(capsys: pytest.CaptureFixture[str], running: Running, *words: str) -> tuple[int, str]:
    code = main([*words, "--broker", running.address])
    return code, capsys.readouterr().out


def test_two_users_reading_goes_on_after_a_set_that_cannot_be_unpacked(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    async def poison() -> None:
        async with ChannelTable() as table:
            producer = BrokerClient(table, running.address).producer()
            poisoned = ByteBufferMessageSet(encode_message(Message(b"junk", Codec.GZIP)))
            await producer.send_requests([ProduceRequest("orders", 1, poisoned)])
            await producer.send("orders", b"of the victim", partition=1)

    asyncio.run(poison())
    code = main(["read", "orders", "--partition", "1", "--broker", running.address])
    output = capsys.readouterr()
    assert (code, output.out) == (OK, "of the victim\n")
    assert "offset 0 of partition 1 is skipped: " in output.err


def test_topics_and_groups_are_deleted(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert say(capsys, running, "group", "delete", "billing", "--json") == (OK, '{"group":"billing","positions":1}\n')
    assert main(["group", "delete", "billing", "--broker", running.address]) == USAGE
    assert "the group billing has no positions: nothing was deleted\n" in capsys.readouterr().err
    assert say(capsys, running, "topic", "delete", "orders") == (OK, "deleted the topic orders with 2 partitions\n")
    assert main(["topic", "delete", "orders", "--broker", running.address]) == USAGE
    assert "there is no topic orders: nothing was deleted\n" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "shown"), [(1, "1 partition\n"), (2, "2 partitions\n")])
def test_one_is_no_plural(count: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def answer(request: Request) -> Response:
        return Response(b"{}", fields={"partitions": str(count)})

    async def check() -> None:
        async with served({METRICS: answer, DELETE_TOPIC: answer}) as address:
            assert await asyncio.to_thread(main, ["topic", "delete", "orders", "--broker", address]) == OK
            assert capsys.readouterr().out == f"deleted the topic orders with {shown}"

    asyncio.run(check())


def test_two_users_one_may_not_delete_the_topic_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says whose it is, and ends with the code for what is not allowed."""

    async def refuse(request: Request) -> Response:
        raise RemoteCallError(NOT_ALLOWED, "the topic orders belongs to user ann")

    async def answer(request: Request) -> Response:
        return Response(b"{}")

    async def check() -> None:
        handlers = {METRICS: answer, DELETE_TOPIC: refuse, DELETE_GROUP: refuse}
        async with served(handlers) as address:
            for what in ("topic", "group"):
                assert await asyncio.to_thread(main, [what, "delete", "orders", "--broker", address]) == DENIED
                assert "belongs to user ann" in capsys.readouterr().err

    asyncio.run(check())


def test_an_unknown_lag_counts_as_too_large(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running.process.kill()
    (segment,) = tmp_path.rglob("orders/0/*.log")
    segment.unlink()
    segment.mkdir()
    with serving(tmp_path, "--listen", running.address, "--json"):
        code, text = say(capsys, running, "lag", "--over", "1000000")
        assert (code, text.splitlines()[1].split()) == (LOST, ["billing", "orders", "0", "4", "unknown", "unknown"])
        assert say(capsys, running, "lag")[0] == OK
        code, text = say(capsys, running, "lag", "--json")
        assert (code, json.loads(text)[0]["lag"]) == (OK, None)


def test_topics_lag_read_and_metrics_show_what_the_broker_has(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = say(capsys, running, "topics")
    assert code == OK
    assert [line.split()[:5] for line in text.splitlines()] == [
        ["TOPIC", "STORAGE", "PARTITION", "FIRST", "END"],
        ["orders", "log", "0", "0", "10"],
        ["orders", "log", "1", "0", "0"],
    ]
    assert json.loads(say(capsys, running, "topics", "--json")[1])[0]["partitions"][0]["end"] == 10
    code, text = say(capsys, running, "lag")
    assert (code, text.splitlines()[1].split()) == (OK, ["billing", "orders", "0", "4", "10", "6"])
    code, text = say(capsys, running, "lag", "billing", "--over", "5", "--json")
    assert (code, json.loads(text)[0]["lag"]) == (LOST, 6)
    assert say(capsys, running, "lag", "nobodys") == (OK, "no positions of a group nobodys yet\n")
    assert say(capsys, running, "read", "orders", "--count", "2") == (OK, "0\n1\n")
    code, text = say(capsys, running, "read", "orders", "--from", "-2", "--json")
    assert [json.loads(line) for line in text.splitlines()] == [
        {"partition": 0, "offset": 8, "payload": "8"},
        {"partition": 0, "offset": 9, "payload_base64": "/w=="},
    ]
    assert "tunnel_broker_messages_stored_total 10\n" in say(capsys, running, "metrics")[1]
    assert json.loads(say(capsys, running, "metrics", "--json")[1])["topics"] == 1


def send(running: Running, *payloads: bytes, partition: int) -> None:
    async def send() -> None:
        async with ChannelTable() as table:
            await BrokerClient(table, running.address).producer().send("orders", *payloads, partition=partition)

    asyncio.run(send())


def test_read_prints_all_partitions_unless_one_is_named(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    send(running, b"x", b"y", b"z", partition=1)
    code, text = say(capsys, running, "read", "orders", "--from", "-2", "--json")
    found = [json.loads(line) for line in text.splitlines()]
    assert [(each["partition"], each["offset"]) for each in found] == [(0, 8), (0, 9), (1, 1), (1, 2)]
    assert say(capsys, running, "read", "orders", "--partition", "1") == (OK, "x\ny\nz\n")
    assert say(capsys, running, "read", "orders", "--partition", "0", "--count", "1") == (OK, "0\n")
    # The offset that only one partition has: the other has nothing to show.
    assert say(capsys, running, "read", "orders", "--from", "8", "--count", "1") == (OK, "8\n")
    code, text = say(capsys, running, "read", "orders", "--from", "2", "--count", "9", "--json")
    assert [json.loads(line)["partition"] for line in text.splitlines()] == [0] * 8 + [1]  # the count is that of all
    code, text = say(capsys, running, "read", "orders", "--follow", "--count", "13", "--json")  # of both at once
    assert code == OK
    assert sorted((json.loads(line)["partition"], json.loads(line)["offset"]) for line in text.splitlines()) == [
        *((0, offset) for offset in range(10)),
        *((1, offset) for offset in range(3)),
    ]


def test_errors_say_what_to_do(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, text in (
        (["read", "nope", "--broker", running.address], USAGE, "there is no topic nope: create it"),
        (["read", "orders", "--from", "99", "--broker", running.address], USAGE, "name another --from"),
        (["read", "orders", "--partition", "2", "--broker", running.address], USAGE, "has the partitions 0 to 1"),
        (["read", "orders", "--partition", "1", "--from", "1", "--broker", running.address], USAGE, "0 to 0 in"),
        (["topics", "--broker", "127.0.0.1:1"], UNREACHABLE, "check the address, and that it runs"),
        (["topics", "--broker", "host:x"], USAGE, "is not an address"),
        (["serve", "--dir", str(running.directory), "--listen", "0"], USAGE, "open in another process"),
        (
            ["serve", "--dir", str(running.directory / "b"), "--listen", running.address],
            USAGE,
            "something listens there",
        ),
        (
            ["serve", "--dir", str(running.directory / "b"), "--topic", "a:x"],
            USAGE,
            "'x' is not a number of partitions;",
        ),
        (["serve", "--dir", "x", "--replica", "a:1", "--replica-of", "b:1"], USAGE, "start them as two"),
        (["serve", "--dir", "x", "--topic", "a/b"], USAGE, "is no name for a topic"),
    ):
        assert main(words) == code, words
        assert text in capsys.readouterr().err


def test_a_stopped_broker_goes_on_where_it_was(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert running.process.stop() == OK
    with serving(running.directory, "--listen", running.address):
        code, text = say(capsys, running, "lag")
        assert (code, text.splitlines()[1].split()) == (OK, ["billing", "orders", "0", "4", "10", "6"])


def test_an_empty_broker_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hold_port() as port, serving(tmp_path, "--listen", f"127.0.0.1:{port}"):
        assert main(["topics", "--broker", f"127.0.0.1:{port}"]) == OK
        assert "no topics yet" in capsys.readouterr().out


def test_a_broker_behind_a_relay_is_reached_by_its_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hold_port() as port:
        relay = f"http://127.0.0.1:{port}"
        with (
            Process(relay_command("serve", "--open", "--listen", f"127.0.0.1:{port}"), ready=says_event("listening")),
            serving(tmp_path, "--relay", relay, "--service", "broker", "--topic", "orders"),
        ):
            assert main(["topics", "--relay", relay, "--broker", "broker", "--json"]) == OK
            assert json.loads(capsys.readouterr().out)[0]["topic"] == "orders"


def test_a_relay_that_refuses_the_service_is_quoted_once(capsys: pytest.CaptureFixture[str]) -> None:
    command = relay_command("serve", "--open", "--listen", "127.0.0.1:0")
    with Process(command, ready=says_event("listening")) as relay:
        url = json.loads(relay.ready_line)["url"]
        assert main(["topics", "--broker", "billing", "--relay", url, "--proxy", "none"]) == LOST
    said = capsys.readouterr().err
    assert said.count("billing: no endpoint listens under this name: start the service, or check") == 1
    assert "no broker answers" not in said


@in_loop
async def test_a_broker_logs_that_its_relay_is_away(tmp_path: Path) -> None:
    async def logs(event: str) -> None:
        is_it = says_event(event)
        async with asyncio.timeout(60):
            while not any(map(is_it, broker.output.splitlines())):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)

    with hold_port() as port:
        url = f"http://127.0.0.1:{port}"
        serve = relay_command("serve", "--open", "--listen", f"127.0.0.1:{port}")
        with (
            Process(serve, ready=says_event("listening")) as relay,
            serving(tmp_path, "--relay", url, "--service", "broker", "--json") as broker,
        ):
            relay.kill()
            await logs("disconnected")
            await relay.start().ready()
            await logs("reconnected")


def test_clients_of_a_killed_broker_behind_a_relay_reach_its_successor(tmp_path: Path) -> None:
    with hold_port() as port:
        relay = f"http://127.0.0.1:{port}"
        options = ("--relay", relay, "--service", "broker", "--topic", "orders")

        async def send_twice(broker: Process) -> None:
            async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                return await attachment.open_connection(address, timeout=20)

            async with attach(relay, linger=0.0) as attachment, ChannelTable(dial, connect_timeout=20) as table:
                producer = BrokerClient(table, "broker").producer()
                await producer.send("orders", b"a")
                waiting = asyncio.ensure_future(BrokerClient(table, "broker").consumer("orders", 0, 1).fetch(60_000))
                await asyncio.to_thread(broker.kill)
                with serving(tmp_path, *options):
                    with pytest.raises(ConnectionError):  # and not silence until the user timeout
                        await waiting
                    assert (await producer.send("orders", b"b")).offset == 1

        with (
            Process(relay_command("serve", "--open", "--listen", f"127.0.0.1:{port}"), ready=says_event("listening")),
            serving(tmp_path, *options) as broker,
        ):
            asyncio.run(send_twice(broker))


def test_the_key_of_a_broker_is_made_shown_and_needs_a_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "broker.pem"
    serve = ["serve", "--dir", str(tmp_path / "data"), "--key", str(key)]
    assert main([*serve, "--show-key"]) == OK
    shown = capsys.readouterr().out
    assert shown.startswith("SHA256:")
    assert main([*serve, "--show-key"]) == OK
    assert capsys.readouterr().out == shown
    assert not (tmp_path / "data").exists()
    assert main(serve) == USAGE
    assert "--service" in capsys.readouterr().err


def test_topics_on_the_command_line_are_parsed() -> None:
    assert parse_topic("orders") == ("orders", TopicSpec())
    assert parse_topic("orders:4") == ("orders", TopicSpec(partitions=4))
    assert parse_topic("hints::memory") == ("hints", TopicSpec(storage="memory"))
    assert parse_topic("hints:2:memory:newest") == ("hints", TopicSpec(partitions=2, storage="memory", policy="newest"))
    for wrong in ("", "a:0", "a:x", "a:1:disk", "a:1:log:oldest", "a:1:memory:best", "a:1:memory:oldest:5"):
        with pytest.raises(UsageError, match="write a name"):
            parse_topic(wrong)


@pytest.mark.parametrize("command", ["serve", "topics", "lag", "read", "metrics"])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args([command, "--help"])
    assert ended.value.code == OK
    assert "example: tunnel-broker" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"),
    [("--retain-bytes", "10x"), ("--retain-bytes", "k"), ("--flush-messages", "0"), ("--retain-for", "-1")],
)
def test_wrong_values_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(["serve", "--dir", "x", option, value])
    assert ended.value.code == USAGE
    assert repr(value) in capsys.readouterr().err
    assert make_parser().parse_args(["serve", "--dir", "x", "--retain-bytes", "10g"]).retain_bytes == 10 << 30
