"""The steps that find out the largest bodies that pass: requests first, then answers."""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tunnel.carriers.probes.probe import PLAIN_TYPE, TEXT_TYPES, Reply
from tunnel_client.doctor.answers import described, is_altered, is_from_limiter, is_silent
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.trials import TRIES, Trials

__all__ = ["LEAST_BODY_BYTES", "examine_sizes", "find_vanishing", "report_vanishing"]

LEAST_BODY_BYTES = 1536  # docs/PROTOCOL.md, 7.16: an endpoint never lowers its limit of bodies below this
_MOST_BODY_BYTES = 1 << 20  # and it never sends more, whatever the relay accepts (`LaneConfig.body_bytes_max`)
_LEAST_ANSWER_BYTES = 768  # the same for answers, where larger ones are lost,
_LEAST_QUESTIONS = 3  # the answer to one comes at once; two fit the smallest answer, so that none is left
_REFUSED_ANSWER_BYTES = 4 << 10  # and where larger ones are refused
_FIRST_BODY_BYTES = 64 << 10  # tried first: an endpoint begins with it, and it shows how fast larger ones are
# A question is a packet that every relay answers (`Prober.ask`). The doctor asks many, and lets the answers wait at the
# relay, so that the relay has enough packets for a large response.
_QUESTION_REQUESTS_MAX = 16
_SLACK_BYTES = 1024  # a full response can be this much below its limit: it has evidence, and another answer did not fit
_TINY_BYTES = 128
_CLIMB = 4  # from one size that passes to the next one
_EXCEPTION = "ask the operator of that filter for an exception for the relay, or use an https:// URL"
_MORE = "ask the operator of that hop to allow larger bodies"
_VANISHING = (
    "a filter drops what is larger, or packets of full size are lost (path MTU): if you use a VPN, lower its MTU to "
    "1280 bytes; else ask the network's operator, or use an https:// URL"
)
_MORE_ANYWHERE = "ask the operators of the relay, and of the proxies on the way, to allow larger bodies"


async def find_vanishing(trials: Trials) -> str:
    """Return which messages vanish although they are the smallest ones that the tunnel needs: "requests", "answers", or
    an empty text. Only silence shows that, twice; other failures are left to `examine_sizes`."""
    prober, patience_s = trials.prober, trials.patience_s()
    ask = functools.partial(prober.ask, LEAST_BODY_BYTES, most=_LEAST_QUESTIONS)
    asked = await trials.once(ask, patience_s, is_test=True)
    if is_silent(asked):
        for _ in range(2):
            make = functools.partial(prober.exchange, LEAST_BODY_BYTES)
            if not is_silent(await trials.once(make, patience_s, is_test=True)):
                return ""
        return "requests"
    if asked.kind != "answer":
        return ""
    for is_repeat in (False, True):
        make = functools.partial(prober.fetch, _LEAST_ANSWER_BYTES, is_repeat=is_repeat)
        reply = await trials.once(make, patience_s, is_test=True)
        if not is_silent(reply):
            break
    if reply.kind != "answer":
        await _leave_answers(trials)
    return "answers" if is_silent(reply) else ""


async def _leave_answers(trials: Trials) -> None:
    """Leave answers that were not fetched: they must not come in place of a later one, or keep the relay from holding a
    request."""
    await trials.ask_until_answered(trials.prober.attach_anew, is_test=True)


def report_vanishing(report: Report, trials: Trials, what: str) -> None:
    """Report that requests, or answers, of the least size that the tunnel needs vanish."""
    step, least = ("body limit", LEAST_BODY_BYTES) if what == "requests" else ("answer limit", _LEAST_ANSWER_BYTES)
    text = f"{what} of {_kib(least)} vanish on the way, while small ones pass, and the tunnel needs them"
    report.add(step, trials.verdict_without_exchanges, text, _VANISHING, vanish=True)


async def examine_sizes(report: Report, trials: Trials) -> int:
    """Report the largest request and answer that pass. Return the size of the request, or 0 if not even the smallest
    passes."""
    size = await _requests(report, trials)
    if size:
        await _answers(report, trials, size)
        await _leave_answers(trials)
    else:
        text = "the relay sends large answers only after large requests, and those do not pass"
        report.add("answer limit", Verdict.SKIPPED, text)
    return size


@dataclass
class _Search:
    """The search for the largest message: `passes_bytes` is 0 if not even the smallest passes, and `passed` is the
    reply to it. If any did not pass, `refused_bytes` is the size of the last of these, and `failed` the reply to it."""

    passes_bytes: int = 0
    passed: Reply | None = None
    refused_bytes: int = 0
    failed: Reply | None = None


_One = Callable[[int], Awaitable[Reply]]


async def _search(trials: Trials, one: _One, most: int, least: int, *, lost_least: int = 0, first: int = 0) -> _Search:
    """Find the largest message for which `one` gets an answer, from the largest one down to `least`. After silence,
    which takes long, go on from the smallest one up, from `lost_least` if it is not 0: then little is waited for in
    vain. `first`, if not 0, is tried before all."""
    found, size = _Search(), most
    if least < first < most:
        found = await _search(trials, one, first, least, lost_least=lost_least)
        if found.passes_bytes < first:
            return found
        least, lost_least = first, 0
    while size >= least and not trials.is_shut:
        reply = await one(size)
        if reply.kind == "answer":
            found.passes_bytes, found.passed = size, reply
            break
        found.refused_bytes, found.failed = size, reply
        if is_silent(reply):
            await _climb(trials, one, most, lost_least or least, found)
            break
        size = max(least, size // 2) if size > least else 0
    return found


async def _climb(trials: Trials, one: _One, most: int, least: int, found: _Search) -> None:
    size, silent = least, found.failed
    assert silent is not None
    while not trials.is_shut:
        reply = await one(size)
        if reply.kind != "answer":
            found.refused_bytes, found.failed = size, reply
            return
        found.passes_bytes, found.passed = size, reply
        if size == most:  # the silence was an accident
            trials.count([silent])
            found.failed = None
            return
        size = min(most, _CLIMB * size)


async def _search_requests(trials: Trials) -> _Search:
    assert trials.prober.attached is not None
    one = functools.partial(_one, trials)
    most = min(trials.prober.attached.body_bytes_max, _MOST_BODY_BYTES)
    return await _search(trials, one, most, LEAST_BODY_BYTES, first=_FIRST_BODY_BYTES)


async def _requests(report: Report, trials: Trials) -> int:
    assert trials.prober.attached is not None
    found = await _search_requests(trials)
    size, failed = found.passes_bytes, found.failed
    if failed is None and size:
        which = "relay accepts" if size == trials.prober.attached.body_bytes_max else "tunnel sends"
        text = f"bodies of {_kib(size)} pass, the largest that the {which}"
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
        text = f"{_refused('bodies', found, failed)}; {_kib(size)} pass"
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
    size = found.passes_bytes
    what = f"{_kib(size)} of noise pass" if size else f"not even {_kib(LEAST_BODY_BYTES)} of noise pass"
    text = f"a hop alters bodies that are not text ({described(failed)}): {what}"
    if not is_altered(failed):
        text = "a filter refuses bodies that look like noise, as encrypted or compressed data does "
        text += f"({described(failed)}): {_kib(found.refused_bytes)} of text pass, {what}"
    verdict, advice = Verdict.NOTE if size else trials.verdict_without_exchanges, _EXCEPTION
    if kind := await _passing_format(trials, found.refused_bytes):
        size = (await _search_requests(trials)).passes_bytes
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
        make = functools.partial(trials.prober.exchange, size)
        reply = await trials.once(make, trials.patience_s(size), is_test=True)
        if reply.kind == "answer" or reply.status == 413 or is_silent(reply):
            break
    if reply.kind == "answer":
        trials.note_rate(size, reply.seconds)
    return reply


def _refused(what: str, found: _Search, failed: Reply) -> str:
    size = _kib(found.refused_bytes)
    if is_silent(failed):
        return f"{what} of {size} vanish on the way, or take too long ({described(failed)})"
    return f"a hop refuses {what} of {size} ({described(failed)})"


async def _answers(report: Report, trials: Trials, request_bytes: int) -> None:
    """Let the answers to many questions wait at the relay, and fetch them in HTTP responses of falling size."""
    prober = trials.prober
    assert prober.attached is not None
    most = min(prober.attached.body_bytes_max, _MOST_BODY_BYTES)
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
    fetching = _Fetching(trials)
    least = _REFUSED_ANSWER_BYTES
    highest = min(most, max(asked, least))
    found = await _search(trials, fetching.fetch, highest, least, lost_least=_LEAST_ANSWER_BYTES)
    size, failed, passed = found.passes_bytes, found.failed, found.passed
    if passed is not None:
        prober.answer_bytes = min(prober.answer_bytes, size)
    if failed is not None and (_is_no_limit(failed) or trials.is_shut):
        text = f"something else answered in place of the relay ({described(failed)})"
        report.add("answer limit", Verdict.SKIPPED, text)
    elif failed is not None and passed is None:
        least = _LEAST_ANSWER_BYTES if is_silent(failed) else least
        text = f"not even answers of {_kib(least)} pass ({described(failed)})"
        report.add("answer limit", trials.verdict_without_exchanges, text, _MORE_ANYWHERE, answer_bytes=0)
    elif failed is None and passed is not None:
        is_whole = passed.bytes > most - _SLACK_BYTES
        size = size if passed.bytes > size - _SLACK_BYTES else passed.bytes
        whole = ", the largest that the relay sends" if is_whole else " (larger ones were not tried)"
        report.add("answer limit", Verdict.OK, f"answers of {_kib(size)} pass{whole}", answer_bytes=size)
    elif failed is not None:
        text = f"{_refused('answers', found, failed)}; {_kib(size)} pass"
        advice = f"smaller answers are asked for, which is slower; {_MORE}"
        if prober.dialing.proxy is not None and prober.dialing.tls is None:
            advice += ", or use an https:// URL, which the proxy passes on unread"
        report.add("answer limit", Verdict.NOTE, text, advice, answer_bytes=size, status=failed.status)


class _Fetching:
    """Fetches answers of one size after the other. What was not answered is asked for again, in the new size."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self._is_repeat = False

    async def fetch(self, size: int) -> Reply:
        """Fetch an answer of this size."""
        patience_s = self._trials.patience_s(size)
        for _ in range(TRIES):
            make = functools.partial(self._trials.prober.fetch, size, is_repeat=self._is_repeat)
            reply = await self._trials.once(make, patience_s, is_test=True)
            self._is_repeat = reply.kind != "answer"
            if reply.kind == "answer" or is_silent(reply):
                break
        return reply


def _kib(size: int) -> str:
    return f"{size / (1 << 10):g} KiB"
