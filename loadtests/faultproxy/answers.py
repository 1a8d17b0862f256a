"""Answers that the proxy makes itself, without upstream."""

import h11

from loadtests.faultproxy.http import HttpSide
from loadtests.faultproxy.options import Html, Status

__all__ = ["ELSEWHERE", "PAGE", "send_answer", "send_status"]

PAGE = b"""<!DOCTYPE html>
<html><head><title>Sign in</title></head>
<body><h1>Sign in to continue</h1><form method="post"><input name="user"><input name="password"></form></body></html>
"""
NOT_MODIFIED = 304  # has no body
ELSEWHERE = b"http://elsewhere.invalid/"  # another origin, which exists nowhere (RFC 2606)


async def send_answer(client: HttpSide, method: bytes, answer: Status | Html) -> int:
    """Send the planned answer; return its status."""
    if isinstance(answer, Html):
        await _send(client, method, 200, [(b"Content-Type", b"text/html; charset=utf-8")], PAGE)
        return 200
    headers = [(b"Content-Type", b"text/plain")]
    if answer.retry_after_s:
        headers.append((b"Retry-After", b"%d" % answer.retry_after_s))
    if 300 <= answer.code <= 399:
        headers.append((b"Location", ELSEWHERE))
    await _send(client, method, answer.code, headers, b"%d\n" % answer.code)
    return answer.code


async def send_status(client: HttpSide, method: bytes, code: int, text: str) -> None:
    """Send a status with a line of text as its body."""
    await _send(client, method, code, [(b"Content-Type", b"text/plain")], f"{code} {text}\n".encode())


async def _send(client: HttpSide, method: bytes, code: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    # The proxy does not read the rest of an unfinished request; on this connection it would be taken for the next
    # request. So the connection must end.
    closing = [(b"Connection", b"close")] if client.h11.their_state in (h11.SEND_BODY, h11.ERROR) else []
    length = (b"Content-Length", b"%d" % len(body))
    await client.send(h11.Response(status_code=code, headers=[*headers, length, *closing]))
    if method != b"HEAD" and code != NOT_MODIFIED:
        await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())
