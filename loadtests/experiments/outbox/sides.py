"""The two processes that are killed: `python -m loadtests.experiments.outbox.sides`, followed by
`sender RELAY DIRECTORY TOTAL` or `receiver RELAY DIRECTORY`.

Each continues from the state in its directory. The sender accepts messages into its outbox until there are enough, and
delivers them; the receiver stores them in its inbox.
"""

import asyncio
import sys
from pathlib import Path

import structlog
import uvloop

from tunnel import Attachment, TunnelError, attach
from tunnel.messages import CallChannel, Inbox, Outbox, OutboxSender, serve_calls

__all__ = ["PAYLOAD_BYTES", "SERVICE", "make_payload", "payload_number", "receive", "send"]

SERVICE = "inbox"
PAYLOAD_BYTES = 100
_BATCH = 500
_AHEAD = 20_000  # limit of accepted and undelivered messages, so that kills hit a sender that still accepts
_NUMBER_BYTES = 8


def make_payload(number: int) -> bytes:
    """Return a message that begins with this number."""
    return number.to_bytes(_NUMBER_BYTES, "big").ljust(PAYLOAD_BYTES, b".")


def payload_number(payload: bytes) -> int:
    return int.from_bytes(payload[:_NUMBER_BYTES], "big")


class _Dialer:
    """Opens channels to the receiver. Attaches again if the relay has refused the old attachment."""

    def __init__(self, relay: str) -> None:
        self._relay = relay
        self._attachment: Attachment | None = None
        self._channel: CallChannel | None = None

    async def connect(self) -> CallChannel:
        if self._channel is not None:
            await self._channel.close()
        if self._attachment is not None and self._attachment.refusal is not None:
            await self._attachment.close()
            self._attachment = None
        if self._attachment is None:
            attachment = attach(self._relay, carrier="link", attach_timeout=60.0, wait=True, linger=0.5)
            await attachment.start()
            self._attachment = attachment
        reader, writer = await self._attachment.open_connection(SERVICE, timeout=15.0)
        self._channel = CallChannel(reader, writer)
        self._channel.start()
        return self._channel


async def send(relay: str, directory: Path, total: int) -> None:
    """Accept messages until there are `total`, and return when all are delivered."""
    outbox = Outbox.open(directory)
    print("ready", outbox.log.end_offset, flush=True)
    async with OutboxSender(outbox, _Dialer(relay).connect) as sender:
        stopped = asyncio.ensure_future(sender.wait())
        accepted = outbox.log.end_offset
        while accepted < total:
            count = min(_BATCH, total - accepted)
            await outbox.put_many([make_payload(accepted + index) for index in range(count)])
            accepted += count
            if outbox.messages_undelivered > _AHEAD:
                delivered = asyncio.ensure_future(outbox.until_delivered(accepted - _AHEAD))
                await asyncio.wait([delivered, stopped], return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    await stopped
        await outbox.until_delivered(total - 1)
        print("delivered", total, flush=True)
        stopped.cancel()
    outbox.close()


async def receive(relay: str, directory: Path) -> None:
    """Receive messages into the inbox until killed."""
    inbox = Inbox.open(directory)
    while True:
        try:
            async with attach(
                relay, carrier="link", name="receiver", attach_timeout=60.0, wait=True, linger=0.5
            ) as attachment:
                await attachment.start_server(serve_calls(inbox.handlers), SERVICE)
                print("ready", inbox.log.end_offset, flush=True)
                while attachment.refusal is None:  # noqa: ASYNC110 - it only keeps the process alive
                    await asyncio.sleep(0.5)
        except TunnelError as error:
            print("attaching again after:", error, flush=True)
            await asyncio.sleep(0.5)


def main(arguments: list[str]) -> None:
    """Run one side."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    side, relay, directory, *rest = arguments
    if side == "sender":
        uvloop.run(send(relay, Path(directory), int(rest[0])))
    else:
        uvloop.run(receive(relay, Path(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
