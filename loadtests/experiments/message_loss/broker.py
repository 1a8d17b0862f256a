"""A small built-in broker with the part of NATS that the experiment needs: one process with one port per server.

Subjects have no wildcards. Messages to a group go to its members in turn. A subscriber that does not read stops the
publisher (back-pressure).
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from loadtests.experiments.message_loss.protocol import Frame, ProtocolError, deliver, info_line, read_frame
from tunnel.process.command_line import configure_log

__all__ = ["Broker", "main"]

_log = structlog.get_logger("broker")


@dataclass(eq=False)
class Subscription:
    """One client's subscription to a subject."""

    writer: asyncio.StreamWriter
    subject: str
    group: str
    sid: str


@dataclass
class Broker:
    """The subscriptions at all servers: a message published at one server is delivered at all of them."""

    subscriptions: list[Subscription] = field(default_factory=list)
    _turn: int = 0

    def chosen(self, subject: str) -> list[Subscription]:
        """Return every subscription to the subject without a group, and one of each group."""
        groups: dict[str, list[Subscription]] = {}
        single = []
        for subscription in self.subscriptions:
            if subscription.subject == subject:
                if subscription.group:
                    groups.setdefault(subscription.group, []).append(subscription)
                else:
                    single.append(subscription)
        self._turn += bool(groups)
        return single + [members[self._turn % len(members)] for members in groups.values()]

    async def serve(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until its connection ends."""
        writer.write(info_line(name))
        try:
            while (frame := await read_frame(reader)) is not None:
                await self._take(frame, writer)
        except (ConnectionError, ProtocolError) as error:
            _log.info("client lost", server=name, error=str(error))
        finally:
            self.subscriptions = [kept for kept in self.subscriptions if kept.writer is not writer]
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _take(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        match frame.verb, frame.words:
            case (("PUB" | "HPUB"), (subject, *_)):
                await self._publish(subject, frame)
            case "SUB", (subject, sid):
                self.subscriptions.append(Subscription(writer, subject, "", sid))
            case "SUB", (subject, group, sid):
                self.subscriptions.append(Subscription(writer, subject, group, sid))
            case "UNSUB", (sid, *_):
                self.subscriptions = [
                    kept for kept in self.subscriptions if not (kept.writer is writer and kept.sid == sid)
                ]
            case "PING", _:
                writer.write(b"PONG\r\n")
            case (("CONNECT" | "PONG"), _):
                pass
            case _:
                raise ProtocolError(f"unknown verb: {frame.verb[:20]!r}")

    async def _publish(self, subject: str, frame: Frame) -> None:
        for subscription in self.chosen(subject):
            if not subscription.writer.is_closing():
                subscription.writer.write(deliver(subject, subscription.sid, frame))
                with contextlib.suppress(ConnectionError):
                    await subscription.writer.drain()


async def _run(ports: Sequence[int]) -> None:
    broker = Broker()
    async with contextlib.AsyncExitStack() as stack:
        for number, port in enumerate(ports, start=1):
            name = f"server-{number}"

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name) -> None:
                await broker.serve(name, reader, writer)

            server = await asyncio.start_server(serve, "127.0.0.1", port)
            await stack.enter_async_context(server)
        _log.info("listening", ports=list(ports))
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.message_loss.broker",
        description="A broker for the message-loss experiment.",
        epilog="example: python -m loadtests.experiments.message_loss.broker 4222 4223 4224",
    )
    parser.add_argument("ports", nargs="+", type=int, metavar="PORT", help="one port on loopback for each server")
    arguments = parser.parse_args(argv)
    configure_log("info")
    try:
        asyncio.run(_run(arguments.ports))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
