"""The doctor's conclusions about hops, and about the number of relays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.client.doctor.prober import EPOCH, Asked, FakeProber, answered, cut, finding, foreign, trials
from tests.support.loops import in_loop, run
from tunnel.carriers.probes.probe import Reply
from tunnel.ground.exit_codes import OK, UNREACHABLE
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.hop_steps import examine_hops, examine_relays, recognise

PAGE = "<html><body><h1>400 Bad request</h1>\nYour browser sent an invalid request.\n</body></html>\n"


def hops(reply: Reply, **answers: Reply) -> Report:
    report, found = Report(""), trials(FakeProber(path=lambda asked: answers.get(asked.kind)))

    async def main() -> None:
        examine_hops(report, found, await recognise(found, reply))

    run(main())
    return report


def relay_says(**headers: str) -> Reply:
    reply = answered("attached")
    reply.headers.update(headers)
    return reply


def test_a_hop_that_only_its_error_page_betrays_is_named() -> None:
    found = finding(hops(relay_says(), big_head=foreign(400, PAGE)), "hops")
    assert found.text == "haproxy stands on the path"
    assert found.verdict is Verdict.NOTE
    assert found.data["products"] == ["haproxy"]


def test_several_hops_are_named_once_and_with_their_versions() -> None:
    report = hops(
        relay_says(via="1.1 v (Varnish/7.1)", server="nginx"),
        odd_expectation=foreign(417, "", server="nginx/1.22.1"),
        big_head=foreign(400, "", server="nginx/1.22.1"),
    )
    found = finding(report, "hops")
    assert found.text == "Varnish 7.1, nginx 1.22.1 stand on the path (Via: 1.1 v (Varnish/7.1))"


def test_hops_without_a_known_name_are_still_found() -> None:
    assert finding(hops(relay_says()), "hops").verdict is Verdict.OK
    found = finding(hops(relay_says(via="1.1 gw7")), "hops")
    assert found.text == "proxies on the path name themselves: 1.1 gw7"
    found = finding(hops(relay_says(), big_head=foreign(431)), "hops")
    assert found.text == "a hop that does not name itself answers in place of the relay (HTTP 431)"
    assert finding(hops(relay_says(), big_head=Reply("lost", 0, "", 0, {})), "hops").verdict is Verdict.OK


def test_varnish_that_pipes_is_known_by_its_behaviour() -> None:
    report = hops(relay_says(), odd_expectation=foreign(417), big_head=Reply("lost", 0, "", 0, {}))
    assert finding(report, "hops").data["products"] == ["Varnish (by its behaviour)"]


def test_http_1_0_is_noted() -> None:
    reply = relay_says()
    reply.http = "1.0"
    assert finding(hops(reply), "http").verdict is Verdict.NOTE


@in_loop
async def test_losing_a_request_for_the_name_of_a_hop_is_no_failure_of_the_path() -> None:
    def path(asked: Asked) -> Reply | None:
        raise cut()

    found = trials(FakeProber(path=path))
    await recognise(found, relay_says())
    assert (found.products, found.failed) == ([], [])
    assert await recognise(found, None) == []


@pytest.mark.parametrize(
    ("epochs", "verdict"),
    [
        ([EPOCH, EPOCH, EPOCH], Verdict.OK),
        ([8, EPOCH, 8], Verdict.PROBLEM),  # two relays answer in turn
        ([8, 9, EPOCH], Verdict.PROBLEM),
        ([8, 9, 10], Verdict.PROBLEM),
        ([EPOCH, EPOCH, 8, 8, EPOCH], Verdict.PROBLEM),  # the first one returns later
        ([EPOCH, 8, 8, 8, 8, 8, 8], Verdict.NOTE),  # a relay that restarts never has its epoch again
    ],
)
@in_loop
async def test_relays_that_take_turns_are_distinguished_from_one_that_restarted(
    epochs: Sequence[int], verdict: Verdict
) -> None:
    report = Report("")
    fake = FakeProber([answered("attached")], epochs=epochs)
    await fake.attach()
    fake.tries = 0
    is_one = await examine_relays(report, trials(fake))
    found = finding(report, "relays")
    assert found.verdict is verdict
    assert is_one == (verdict is not Verdict.PROBLEM)
    assert report.exit_code == (OK if is_one else UNREACHABLE)
    if not is_one:
        assert "ip_hash" in found.advice
