"""The conclusions of the doctor from single exchanges. tests/client/doctor/test_examination.py has real paths."""

from __future__ import annotations

import pytest

from tests.client.doctor.prober import Asked, FakeProber, answered, cut, finding, foreign, trials
from tests.support.hurried_loop import hurried
from tunnel.carriers.probes.probe import Reply
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.path_steps import _buffering, examine_path, examine_reliability, examine_throughput
from tunnel_client.doctor.size_steps import _one


def examined(fake: FakeProber, *, pause_s: float = 0.0) -> Report:
    report, found = Report("http://relay.invalid"), trials(fake)

    async def main() -> None:
        await examine_path(report, found, 64 << 10)
        found.pause_s = pause_s
        await examine_throughput(report, found, 64 << 10)
        examine_reliability(report, found)

    hurried(main())
    return report


@pytest.mark.parametrize("caches", [False, True])
def test_a_hop_that_answers_from_its_cache_is_found(caches: bool) -> None:
    found = finding(examined(FakeProber(caches=caches)), "caching")
    assert (found.verdict is Verdict.NOTE) == found.data["cached"] == caches
    assert found.text.startswith("a hop answers from its cache" if caches else "every request is answered by the relay")


def test_a_lost_exchange_is_counted_and_the_steps_go_on() -> None:
    def path(asked: Asked) -> Reply | None:
        if asked.kind == "exchange" and asked.size and not lost:  # the first that looks for altered data
            lost.append(asked.size)
            raise cut()
        return None

    lost: list[int] = []
    report = examined(FakeProber(path=path))
    assert report.exit_code == 0
    assert finding(report, "altering").verdict is Verdict.OK
    found = finding(report, "reliability")
    assert found.verdict is Verdict.NOTE
    assert "exchanges was not answered by the relay (the connection was closed before" in found.text
    assert found.data["failed"] == 1


def test_no_step_takes_another_server_for_the_relay_and_each_step_is_reported() -> None:
    report = examined(FakeProber(path=lambda asked: foreign(503, "", server="nginx/1.2")))
    verdicts = {one.step: one.verdict for one in report.findings}
    skipped = dict.fromkeys(("buffering", "caching", "altering", "headers"), Verdict.SKIPPED)
    assert verdicts == {**skipped, "throughput": Verdict.SKIPPED, "reliability": Verdict.NOTE}
    assert finding(report, "altering").text == "the relay did not answer (HTTP 503 from nginx 1.2, an empty body)"
    assert finding(report, "throughput").text == "nothing passes any more"


def test_altered_data_is_counted() -> None:
    def path(asked: Asked) -> Reply | None:
        return answered("damaged", 200, "3 bytes were added") if asked.size else None

    found = finding(examined(FakeProber(path=path)), "altering")
    assert found.text == "3 of 3 exchanges arrived altered (3 bytes were added)"


def test_a_hop_that_removes_headers_is_found() -> None:
    assert finding(examined(FakeProber()), "headers").verdict is Verdict.OK
    stripped = FakeProber(path=lambda asked: answered() if asked.kind == "claim_exit" else None)
    assert finding(examined(stripped), "headers").data == {"stripped": True}
    exit_ = answered()
    exit_.headers["cache-control"] = "no-store, no-transform"
    is_exit = FakeProber(path=lambda asked: exit_ if asked.kind == "claim_exit" else None)
    assert finding(examined(is_exit), "headers").verdict is Verdict.OK


def test_where_the_rate_is_limited_a_few_transfers_take_the_place_of_load() -> None:
    fake = FakeProber()
    found = finding(examined(fake, pause_s=0.5), "throughput")
    assert found.text.startswith("about 0.12 MiB/s towards the relay")
    assert sum(one.size == 64 << 10 for one in fake.asked[-3:]) == 3


def test_where_one_request_passes_at_a_time_few_transfers_are_enough() -> None:
    fake, report = FakeProber(), Report("")
    found = trials(fake)
    found.requests_max = 1
    hurried(examine_throughput(report, found, 64 << 10))
    assert finding(report, "throughput").text.endswith("towards the relay, in one request after the other")
    assert len(fake.asked) == 3


@pytest.mark.parametrize(("worst_s", "watched_s"), [(0.0, 1.0), (0.4, 2.0), (5.0, 3.0)])
def test_an_unfinished_request_is_watched_for_less_time_on_a_fast_path(
    worst_s: float, watched_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = list[float]()
    fake = FakeProber()

    async def send_unfinished(seconds: float) -> tuple[bool, Reply]:
        watched.append(seconds)
        return True, answered("status", 415)

    monkeypatch.setattr(fake, "send_unfinished", send_unfinished)
    found = trials(fake)
    found.worst_s = worst_s
    hurried(_buffering(Report(""), found))
    assert set(watched) == {watched_s}


def test_large_messages_that_pass_shorten_the_wait_for_others() -> None:
    found = trials(FakeProber())
    before_s = found.patience_s(1 << 20)
    hurried(_one(found, 64 << 10))
    assert found.patience_s(1 << 20) < before_s
    assert found.patience_s(1 << 20) >= found.patience_s()


def test_bodies_that_pass_no_longer_are_a_problem_unless_a_link_carries() -> None:
    for has_link, verdict in ((False, Verdict.PROBLEM), (True, Verdict.NOTE)):
        for pause_s in (0.0, 0.5):
            report = Report("")
            found = trials(FakeProber(path=lambda asked: foreign(413) if asked.size else None))
            found.has_link, found.pause_s = has_link, pause_s
            hurried(examine_throughput(report, found, 64 << 10))
            assert finding(report, "throughput").verdict is verdict
            assert (report.exit_code == 0) == has_link
