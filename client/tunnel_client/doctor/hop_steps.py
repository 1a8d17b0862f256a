"""The steps that find out which hops stand on the path, and how many relays answer at its end."""

import asyncio
from collections.abc import Sequence

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.probes.probe import Prober, Reply
from tunnel.ground.exit_codes import UNREACHABLE
from tunnel_client.doctor.answers import is_silent
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.products import is_relay_itself, products_in
from tunnel_client.doctor.trials import ANSWER_S, Trials

__all__ = ["examine_hops", "examine_relays", "recognise"]

_ATTACHES = 4  # on HTTP connections of their own: enough to meet the same relay again where two answer by turns
_ATTACHES_MAX = 8
_NOWHERE = "http://tunnel-doctor.invalid"  # no such name exists (RFC 6761): a proxy answers with a page of its own
PAGE_S = 3.0  # enough for a proxy that asks its name server first
_VIA = ("via", "x-cache")


async def recognise(trials: Trials, reply: Reply | None, proxy: str | None = None) -> list[Reply]:
    """Note in `trials` the products that name themselves. Return `reply`, and the answers to two more requests.

    These two are meant for the hops themselves: one has a header that is too large, the other an expectation that no
    server can meet. A forward proxy, which `proxy` names as in the settings, is also asked for a host that exists
    nowhere. None of these requests carries the token.
    """
    if reply is None:
        return []
    prober = trials.prober
    patience_s = trials.patience_s() if prober.attached is not None else ANSWER_S
    expectation, head, outside = await asyncio.gather(
        trials.ask(prober.odd_expectation, patience_s),
        trials.ask(prober.big_head, patience_s),
        _ask_proxy(trials, proxy),
    )
    replies = [reply, expectation, head]
    trials.writers = _names(replies)
    trials.products = _names([*replies, outside] if outside is not None else replies)
    is_mute = expectation.status == 417 and not expectation.headers.get("server") and not expectation.bytes
    if not trials.products and is_mute and head.kind == "lost":
        trials.products = ["Varnish (by its behaviour)"]
    return replies


def _names(replies: Sequence[Reply]) -> list[str]:
    names: dict[str, None] = {}
    for each in replies:
        page = each.page if each.kind == "foreign" else ""
        names.update(dict.fromkeys(products_in(each.headers, page)))
    plain = {name.split(" ")[0] for name in names if " " in name}
    return [name for name in names if name not in plain]  # "nginx 1.22.1" says more than "nginx"


async def _ask_proxy(trials: Trials, proxy: str | None) -> Reply | None:
    if proxy is None or trials.prober.dialing.proxy is None:
        return None
    async with Prober(Dialing(_NOWHERE, proxy=proxy)) as stranger:
        if stranger.dialing.proxy is None:
            return None  # the environment excludes this host
        return await trials.ask(stranger.page, PAGE_S)


def examine_hops(report: Report, trials: Trials, replies: list[Reply]) -> None:
    """Report which hops were recognised."""
    if not replies:
        return
    hops = list(dict.fromkeys(replies[0].headers[name] for name in _VIA if name in replies[0].headers))
    products = trials.products
    silent = next((reply for reply in replies if reply.kind == "foreign" and not is_relay_itself(reply.headers)), None)
    if products:
        text = f"{', '.join(products)} {'stands' if len(products) == 1 else 'stand'} on the path"
        text += f" (Via: {replies[0].headers['via']})" if "via" in replies[0].headers else ""
        report.add("hops", Verdict.NOTE, text, hops=hops, products=products)
    elif hops:
        text = f"proxies on the path name themselves: {', '.join(hops)}"
        report.add("hops", Verdict.NOTE, text, hops=hops, products=[])
    elif silent is not None:
        text = f"a hop that does not name itself answers in place of the relay (HTTP {silent.status})"
        report.add("hops", Verdict.NOTE, text, hops=[], products=[])
    else:
        text = "no proxy or other server shows itself on the path"
        report.add("hops", Verdict.OK, text, hops=[], products=[])
    if replies[0].http == "1.0":
        text = "answers come in HTTP/1.0: each exchange needs a connection of its own"
        report.add("http", Verdict.NOTE, text, "the tunnel copes with that; it costs time", http=replies[0].http)


async def examine_relays(report: Report, trials: Trials) -> bool:
    """Find out whether several relays answer by turns. Return False if so, since no tunnel works then."""
    prober: Prober = trials.prober
    assert prober.attached is not None
    epochs = [prober.attached.epoch]
    await trials.room(_ATTACHES - 1, _ATTACHES - 1)
    replies = await asyncio.gather(*(trials.ask(prober.attach_elsewhere) for _ in range(_ATTACHES - 1)))
    failed = [reply for reply in replies if reply.kind != "attached"]
    trials.count([reply for reply in failed if is_silent(reply)])
    if failed:  # those at once may have been too many
        await trials.is_refused(failed[0], is_alone=False)
        replies = []
        for _ in range(_ATTACHES - 1):
            await prober.reconnect()  # an idle connection may be all that the path carries at once
            replies.append(await trials.once(prober.attach_elsewhere, is_test=True))
    for reply in replies:
        epochs.append(reply.epoch if reply.kind == "attached" else epochs[-1])
    while len(set(epochs)) == 2 and not _returns(epochs) and len(epochs) < _ATTACHES_MAX:
        reply = await trials.once(prober.attach_elsewhere, is_test=True)
        epochs.append(reply.epoch if reply.kind == "attached" else epochs[-1])
    count = len(set(epochs))
    if _returns(epochs) or count > 2:
        text = f"{count} relays answer at this address by turns, and none knows what another was sent"
        advice = (
            "ask the relay's operator to lead each client to one relay (nginx: ip_hash; haproxy: balance source), or "
            "name one of the relays in the URL"
        )
        report.add("relays", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, relays=count)
        return False
    if count == 2:
        await trials.once(prober.attach, is_test=True)
        text = "the relay was restarted during this examination, or another one took its place"
        report.add("relays", Verdict.NOTE, text, "run this again if other lines look odd", relays=2)
    else:
        report.add("relays", Verdict.OK, "the same relay answers each time", relays=1)
    return True


def _returns(epochs: list[int]) -> bool:
    """Return whether an epoch came back after another one. A restarted relay never has its old epoch again."""
    changes = [one for one, before in zip(epochs, [None, *epochs], strict=False) if one != before]
    return len(changes) > len(set(changes))
