"""Fifty-one attacks of a relay that alters, redirects, cuts, replays and strips, drawn by seed.

Whatever it does to a stream whose key is known: it reads no byte, neither application reads a byte that the other did
not write, both get an error, and nothing goes on in clear.
"""

import asyncio
from random import Random

import pytest

from tests.carriers.harness import noise
from tests.encryption.attacker import KINDS, Attacker
from tests.encryption.rig import another_key, key, key_file
from tests.support.http_relay import HttpTestRelay, LinkTestRelay
from tests.support.loops import run
from tunnel import Attachment, StreamReader, StreamWriter

SEEDS = range(51)  # three of each kind
REPLAYS = ("replay", "replay request")
SECRET = b"account 100;"
QUESTION, ANSWER = SECRET + noise(300_000, 1), SECRET + noise(300_000, 2)


class Witness:
    """A service, and what came of each of its connections: what it read, and whether that ended with an error."""

    def __init__(self) -> None:
        self.read: list[bytearray] = []
        self.clean: list[bool] = []
        self.was_clean = asyncio.Event()

    async def __call__(self, reader: StreamReader, writer: StreamWriter) -> None:
        number = len(self.read)
        self.read.append(bytearray())
        self.clean.append(False)
        try:
            while data := await reader.read(1 << 16):
                self.read[number] += data
            writer.write(ANSWER)
            writer.close()
            await writer.wait_closed()
            self.clean[number] = True
            self.was_clean.set()
        except OSError:
            writer.transport.abort()


async def ask(client: Attachment) -> tuple[bytes, Exception | None]:
    """Ask the service; return what was read of the answer, and the error or None."""
    got = bytearray()
    try:
        reader, writer = await client.open_connection("bank", timeout=30)
    except (OSError, TimeoutError) as error:
        return bytes(got), error
    try:
        writer.write(QUESTION)
        writer.write_eof()
        while data := await reader.read(1 << 16):
            got += data
        writer.close()
        await writer.wait_closed()
    except OSError as error:
        writer.transport.abort()
        return bytes(got), error
    return bytes(got), None


async def attack(kind: str, seed: int) -> None:
    elsewhere = {"redirect": "other", "impersonate": "false"}.get(kind, "")
    attacker = Attacker(kind, Random(seed), elsewhere)
    bank, other, false = Witness(), Witness(), Witness()
    relay_type = HttpTestRelay if seed % 5 == 0 else LinkTestRelay
    options = {"user_timeout": 2.0, "linger": 0.5}
    mode = "off" if kind == "forge answer" else "auto"
    async with (
        relay_type(packet_filter=attacker) as relay,
        relay.attach("ann", key=key_file(), encryption=mode, **options) as service,
        relay.attach("ann", key=another_key().path, **options) as imposter,
        relay.attach("bob", peer_key=key().fingerprint, **options) as client,
    ):
        await service.start_server(bank, "bank")
        await service.start_server(other, "other")
        await imposter.start_server(false, "false")
        if kind in REPLAYS:
            assert await ask(client) == (ANSWER, None)
            await bank.was_clean.wait()
            attacker.is_first_over = True
            bank.clean = [False]
        two = kind in ("swap", "cross")
        outcomes = await asyncio.gather(ask(client), ask(client)) if two else [await ask(client)]
    assert attacker.struck
    for got, error in outcomes:
        assert isinstance(error, OSError), f"{kind}: the client saw no error"
        assert ANSWER.startswith(got)
    for read in [*bank.read, *other.read, *false.read]:
        assert QUESTION.startswith(read)
    assert not any([*bank.clean, *other.clean, *false.clean]), f"{kind}: a service saw no error"
    assert not other.read
    assert not false.read
    assert SECRET not in attacker.seen
    if kind in ("cross", "replay request"):  # a handshake that others have begun never reaches the application
        assert len(bank.read) == (kind == "replay request")


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["clear", "encrypted"])
def test_a_man_in_the_middle_rewrites_only_what_is_in_clear(is_encrypted: bool) -> None:
    """The attacker knows the protocol, so that neither side notices what it rewrites in a clear stream. In an encrypted
    stream, it finds nothing to rewrite."""

    async def scenario() -> None:
        attacker, bank = Attacker("rewrite", Random(1)), Witness()
        options = {"peer_key": key().fingerprint} if is_encrypted else {"encryption": "off"}
        async with (
            HttpTestRelay(packet_filter=attacker) as relay,
            relay.attach("ann", key=key_file()) as service,
            relay.attach("bob", **options) as client,
        ):
            await service.start_server(bank, "bank")
            got, error = await ask(client)
            await bank.was_clean.wait()
        assert error is None
        assert attacker.struck is not is_encrypted
        account = b"account 100;" if is_encrypted else b"account 666;"
        assert bytes(bank.read[0][:12]) == got[:12] == account

    run(scenario())


@pytest.mark.parametrize("seed", SEEDS)
def test_an_attack_is_an_error_for_both_applications(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[seed % len(KINDS)]
    if kind not in ("swap", "cross", *REPLAYS):  # some other kinds leave both sides waiting for a handshake
        monkeypatch.setattr("tunnel.encryption.transport.HANDSHAKE_S", 1.0)
    run(attack(kind, seed))
