"""The step that tries to reach a target through the tunnel, and says whether the connection is encrypted."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from tunnel import DeniedError, NotAuthenticatedError, PeerKeyError, RefusedError, TunnelError
from tunnel.encryption.known_peers import EXIT, KnownPeers, service_peer
from tunnel.ground.exit_codes import LOST, UNREACHABLE
from tunnel.ground.printable import no_answer
from tunnel.refusals import OR_WAIT
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.places import Address
from tunnel_client.settings import RelaySettings

__all__ = ["TARGET_CONNECTIONS", "TARGET_REQUESTS", "examine_target"]

TARGET_S = 15.0
TARGET_REQUESTS, TARGET_CONNECTIONS = 12, 2  # what an attachment and one connection take, at most
_NOT_FROM_RELAY = "not from a relay"  # part of the text of an error that an intermediary's answer caused


async def examine_target(report: Report, settings: RelaySettings, target: Address) -> None:
    """Open a connection to the target, and report how that ended and whether it is encrypted.

    A key that is seen for the first time is not remembered, because an examination must not make a key trusted.
    """
    report.target = str(target)
    try:
        peer, known_peers = _known_peers(settings, target)
        async with replace(settings, known_peers=known_peers).attach(attach_timeout=TARGET_S) as attachment:
            attachment.add_wait_listener(_Waits(report))
            began = time.monotonic()
            _, writer = await attachment.open_connection(target.host, target.port, timeout=TARGET_S)
            milliseconds = round((time.monotonic() - began) * 1e3, 1)
            writer.transport.abort()
    except PeerKeyError as error:
        report.add("encryption", Verdict.PROBLEM, str(error), exit_code=error.exit_code, reason="key")
    except (DeniedError, NotAuthenticatedError) as error:
        if _NOT_FROM_RELAY in str(error):
            text = f"the target was not tried, because a hop refused the request: {error}"
            advice = "the lines above say what limits the path"
            report.add("target", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, reason="path")
        else:
            report.add("target", Verdict.PROBLEM, str(error), exit_code=error.exit_code, reason="denied")
    except RefusedError as error:
        report.add("target", Verdict.PROBLEM, str(error), exit_code=LOST, reason=error.reason.name.lower())
    except (TunnelError, TimeoutError) as error:
        text = str(error).removesuffix(OR_WAIT) or f"no answer within {TARGET_S:g} s"
        report.add("target", Verdict.PROBLEM, text, exit_code=LOST, reason="lost")
    else:
        text = f"{report.target} is allowed, and answers within {milliseconds:g} ms"
        report.add("target", Verdict.OK, text, connect_ms=milliseconds)
        _tell_encryption(report, settings, peer, writer)


class _Waits:
    """Says why the target does not answer, as long as it does not."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def unanswered(self, target: str, seconds: float, why: str) -> None:
        self._report.begin(f"asking for {target}: {no_answer(seconds, why)}", is_news=True)


def _known_peers(settings: RelaySettings, target: Address) -> tuple[str, Path | None]:
    """Return the name of the peer that accepts, and the file of known peers if it has a key of this peer."""
    peer = service_peer(target.host) if target.port is None else EXIT
    path = None if settings.known_peers is None else Path(settings.known_peers)
    try:
        is_known = path is not None and KnownPeers(path).find(settings.url, peer) is not None
    except ValueError as error:
        raise PeerKeyError(str(error)) from None
    return peer, path if is_known else None


def _tell_encryption(report: Report, settings: RelaySettings, peer: str, writer: asyncio.StreamWriter) -> None:
    key = writer.get_extra_info("peer_key")
    if not key:
        why = "--encryption is off" if settings.encryption == "off" else f"{_described(peer)} has no key"
        text = f"not from end to end, because {why}: the relay, and a proxy that inspects TLS, can read and alter data"
        report.add("encryption", Verdict.OK, text, peer=peer, key="")
        return
    is_verified = bool(writer.get_extra_info("peer_key_verified"))
    data = {"peer": peer, "key": key, "verified": is_verified}
    if is_verified:
        text = f"from end to end; {_described(peer)} has the key that you trust, {key}"
        report.add("encryption", Verdict.OK, text, **data)
        return
    text = f"from end to end, but the key of {_described(peer)}, {key}, is not verified"
    advice = f"ask its operator whether this is its key; if it is, run: tunnel peers trust {peer} {key}"
    if settings.source == "--relay":
        advice += f" --relay {settings.url}"
    report.add("encryption", Verdict.NOTE, text, advice, **data)


def _described(peer: str) -> str:
    return "the exit" if peer == EXIT else f"the service {peer.partition(':')[2]}"
