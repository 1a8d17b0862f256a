"""The steps that find out the largest bodies that pass: requests first, then answers."""

import functools
from dataclasses import dataclass

from tunnel.carriers.probes.probe import PLAIN_TYPE, TEXT_TYPES, Reply
from tunnel_client.doctor.answers import described, is_altered, is_from_limiter
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.trials import TRIES, Trials

__all__ = ["LEAST_BODY_BYTES", "examine_sizes"]

LEAST_BODY_BYTES = 1536  # docs/PROTOCOL.md, 7.16: an endpoint never lowers its limit of bodies below this
_LEAST_ANSWER_BYTES = 4 << 10  # the same for answers
# A question is a packet that every relay answers (`Prober.ask`). The doctor asks many, and lets the answers wait at the
# relay, so that the relay has enough packets for a large response.
_QUESTION_REQUESTS_MAX = 16
_SLACK_BYTES = 1024  # a full response can be this much below its limit: it has evidence, and another answer did not fit
_TINY_BYTES = 128
_EXCEPTION = "ask the operator of that filter for an exception for the relay, or use an https:// URL"
_MORE = "ask the operator of that hop to allow larger bodies"
_MORE_ANYWHERE = "ask the operators of the relay, and of the proxies on the way, to allow larger bodies"


async def examine_sizes(report: Report, trials: Trials) -> int:
    """Report the largest request and answer that pass. Return the size of the request, or 0 if not even the smallest
    passes."""
    size = await _requests(report, trials)
    if size:
        await _answers(report, trials, size)
        # Answers that were not fetched must not come in place of a later one, or keep the relay from holding a request.
        await trials.ask_until_answered(trials.prober.attach_anew, is_test=True)
    else:
        text = "the relay sends large answers only after large requests, and those do not pass"
        report.add("answer limit", Verdict.SKIPPED, text)
    return size


@dataclass
class _Search:
    """The search for the largest request: `passes_bytes` is 0 if not even the smallest passes. If any did not pass,
    `refused_bytes` is the size of the last of these, and `failed` the reply to it."""

    passes_bytes: int = 0
    refused_bytes: int = 0
    failed: Reply | None = None


async def _search(trials: Trials, size: int) -> _Search:
    found = _Search()
    while size >= LEAST_BODY_BYTES and not trials.is_shut:
        reply = await _one(trials, size)
        if reply.kind == "answer":
            found.passes_bytes = size
            break
        found.refused_bytes, found.failed, size = size, reply, _smaller(size, reply)
    return found


async def _requests(report: Report, trials: Trials) -> int:
    assert trials.prober.attached is not None
    most = trials.prober.attached.body_bytes_max
    found = await _search(trials, most)
    size, failed = found.passes_bytes, found.failed
    if failed is None and size:
        text = f"bodies of {_kib(size)} pass, the largest that the relay accepts"
        report.add("body limit", Verdict.OK, text, body_bytes=size)
    elif failed is None:
        text = f"not even requests of {_kib(LEAST_BODY_BYTES)} pass (the relay accepts less)"
        report.add("body limit", Verdict.PROBLEM, text, _MORE_ANYWHERE, body_bytes=0)
    elif _is_no_limit(failed) or trials.is_shut:
        text = f"something else answered in place of the relay ({described(failed)})"
        report.add("body limit", Verdict.SKIPPED, text)
    elif is_altered(failed) or await _is_filter(trials, found.refused_bytes):
        size = await _report_filter(report, trials, found, failed)
    elif size:
        text = f"a hop refuses bodies of {_kib(found.refused_bytes)} ({described(failed)}); {_kib(size)} pass"
        advice = f"smaller bodies are used, which is slower; {_MORE}"
        report.add("body limit", Verdict.NOTE, text, advice, body_bytes=size, status=failed.status)
    else:
        await _report_floor(report, trials, failed)
    return size


def _is_no_limit(reply: Reply) -> bool:
    """Return whether a reply to a large body says nothing about its size."""
    return is_from_limiter(reply) or reply.status == 407


async def _is_filter(trials: Trials, size: int) -> bool:
    """Return whether a body of this size, which does not pass as noise, passes as text."""
    make = functools.partial(trials.prober.exchange, size, is_text=True)
    return (await trials.ask_until_answered(make, is_test=True)).kind == "answer"


async def _report_filter(report: Report, trials: Trials, found: _Search, failed: Reply) -> int:
    """Report a filter, or a hop that alters noise. Return the size of the largest body that passes, perhaps as text, as
    the tunnel sends it."""
    assert trials.prober.attached is not None
    size = found.passes_bytes
    what = f"{_kib(size)} of noise pass" if size else f"not even {_kib(LEAST_BODY_BYTES)} of noise pass"
    text = f"a hop alters bodies that are not text ({described(failed)}): {what}"
    if not is_altered(failed):
        text = "a filter refuses bodies that look like noise, as encrypted or compressed data does "
        text += f"({described(failed)}): {_kib(found.refused_bytes)} of text pass, {what}"
    verdict, advice = Verdict.NOTE if size else trials.verdict_without_exchanges, _EXCEPTION
    if kind := await _passing_format(trials, found.refused_bytes):
        size = (await _search(trials, trials.prober.attached.body_bytes_max)).passes_bytes
        text += f", but {_kib(size)} of noise pass in the form of text ({kind})"
        verdict, advice = Verdict.NOTE, f"the tunnel finds this form by itself, and moves a third more bytes: {advice}"
    report.add("filter", verdict, text, advice, body_bytes=size, status=failed.status)
    return size


async def _passing_format(trials: Trials, size: int) -> str:
    """Return the type of the first format (docs/PROTOCOL.md, 7.19) in which a filter lets this much noise pass, or an
    empty text. All later exchanges are sent in it."""
    for kind in TEXT_TYPES:
        attached = await trials.ask_until_answered(functools.partial(trials.prober.attach_as, kind), is_test=True)
        if attached.kind == "attached" and (await _one(trials, size)).kind == "answer":
            return kind
    await trials.ask_until_answered(functools.partial(trials.prober.attach_as, PLAIN_TYPE), is_test=True)
    return ""


async def _report_floor(report: Report, trials: Trials, failed: Reply) -> None:
    """Report that not even the smallest body that the tunnel needs passes, and what does."""
    size = LEAST_BODY_BYTES // 2
    while size > _TINY_BYTES and (await _one(trials, size)).kind != "answer":
        size //= 2
    text = f"not even requests of {_kib(LEAST_BODY_BYTES)} pass ({described(failed)}): "
    text += f"a hop refuses bodies of more than about {size} bytes, and the tunnel needs {_kib(LEAST_BODY_BYTES)}"
    report.add("body limit", trials.verdict_without_exchanges, text, _MORE_ANYWHERE, body_bytes=0, passes_bytes=size)


async def _one(trials: Trials, size: int) -> Reply:
    """Try a body of this size until it passes, or until it is clear that it does not."""
    for _ in range(TRIES):
        reply = await trials.once(functools.partial(trials.prober.exchange, size), is_test=True)
        if reply.kind == "answer" or reply.status == 413 or reply.text.startswith("no answer within"):
            break
    return reply


def _smaller(size: int, reply: Reply) -> int:
    """Return the next size to try. After a timeout, skip one size, because each timeout takes long."""
    smaller = size // 4 if reply.text.startswith("no answer within") and size > 4 * _LEAST_ANSWER_BYTES else size // 2
    return max(LEAST_BODY_BYTES, smaller) if size > LEAST_BODY_BYTES else 0


async def _answers(report: Report, trials: Trials, request_bytes: int) -> None:
    """Let the answers to many questions wait at the relay, and fetch them in HTTP responses of falling size."""
    prober = trials.prober
    assert prober.attached is not None
    most = min(prober.attached.body_bytes_max, 1 << 20)
    wanted = min(most, _QUESTION_REQUESTS_MAX * request_bytes)
    asked = failures = 0
    while asked < wanted and failures < TRIES:
        size = min(request_bytes, prober.ask_bytes_max, wanted - asked + _LEAST_ANSWER_BYTES)
        reply = await trials.once(functools.partial(prober.ask, size), is_test=True)
        if reply.kind == "answer":
            asked += size
        else:
            failures += 1
    if not asked:
        report.add("answer limit", Verdict.SKIPPED, f"the relay did not answer questions ({described(reply)})")
        return
    size, is_repeat, failed, refused = min(most, max(asked, _LEAST_ANSWER_BYTES)), False, None, 0
    while size >= _LEAST_ANSWER_BYTES:
        reply = await _fetch(trials, size, is_repeat=is_repeat)
        if reply.kind == "answer":
            break
        refused, size, is_repeat, failed = size, _smaller(size, reply), True, reply
    if reply.kind == "answer":
        prober.answer_bytes = min(prober.answer_bytes, size)
    if reply.kind != "answer" and (_is_no_limit(reply) or trials.is_shut):
        text = f"something else answered in place of the relay ({described(reply)})"
        report.add("answer limit", Verdict.SKIPPED, text)
    elif reply.kind != "answer":
        text = f"not even answers of {_LEAST_ANSWER_BYTES >> 10} KiB pass ({described(reply)})"
        report.add("answer limit", trials.verdict_without_exchanges, text, _MORE_ANYWHERE, answer_bytes=0)
    elif failed is None:
        is_whole = reply.bytes > most - _SLACK_BYTES
        size = size if reply.bytes > size - _SLACK_BYTES else reply.bytes
        whole = ", the largest that the relay sends" if is_whole else " (larger ones were not tried)"
        report.add("answer limit", Verdict.OK, f"answers of {_kib(size)} pass{whole}", answer_bytes=size)
    else:
        text = f"a hop refuses answers of {_kib(refused)} ({described(failed)}); {_kib(size)} pass"
        advice = f"smaller answers are asked for, which is slower; {_MORE}"
        if prober.dialing.proxy is not None and prober.dialing.tls is None:
            advice += ", or use an https:// URL, which the proxy passes on unread"
        report.add("answer limit", Verdict.NOTE, text, advice, answer_bytes=size, status=failed.status)


async def _fetch(trials: Trials, size: int, *, is_repeat: bool) -> Reply:
    for _ in range(TRIES):
        reply = await trials.once(functools.partial(trials.prober.fetch, size, is_repeat=is_repeat), is_test=True)
        is_repeat = True
        if reply.kind == "answer" or reply.text.startswith("no answer within"):
            break
    return reply


def _kib(size: int) -> str:
    return f"{size / (1 << 10):g} KiB"
