"""The plan of faults is seeded: it depends only on seed, options and the number of the exchange."""

import dataclasses
from typing import Any

import pytest

from loadtests.faultproxy import Delay, Drop, FaultProxyOptions, Flip, Html, LateDuplicate, Status, Truncate
from loadtests.faultproxy.faults import NO_HARM, ExchangePlan, Fate, FaultKind, plan_exchange
from tests.loadtests.faultproxy.rig import Rig, in_loop

ALL = FaultProxyOptions(
    seed=7,
    drop_request=Drop(0.2),
    drop_response=Drop(0.3, silent=True),
    duplicate=0.2,
    late_duplicate=LateDuplicate(0.1, 1000),
    delay=Delay(200, 100),
    truncate=Truncate(0.2),
    flip=Flip(0.2, bits_max=8),
    statuses=(Status(503, 0.1), Status(504, 0.1, after=True)),
    html=Html(0.1),
)


def plans(options: FaultProxyOptions, count: int = 400) -> list[ExchangePlan]:
    return [plan_exchange(options, number) for number in range(1, count + 1)]


def test_without_options_nothing_is_planned() -> None:
    assert set(plans(FaultProxyOptions())) == {ExchangePlan(number, Fate.PASSED) for number in range(1, 401)}


GOLDEN_FATES = "0313144304110433143342424444110114440404"  # indices into Fate
GOLDEN_DELAYS = [285, 289, 179, 176, 224, 212]


def test_plans_never_change() -> None:
    """In every process and version, a seed from a report reproduces its faults."""
    assert "".join(str(list(Fate).index(plan.fate)) for plan in plans(ALL, 40)) == GOLDEN_FATES
    assert [plan.request.delay_us for plan in plans(ALL, 6)] == GOLDEN_DELAYS


@pytest.mark.parametrize(
    "more",
    [
        {"html": Html(0)},
        {"flip": Flip(1, bits_max=64)},
        {"truncate": Truncate(0)},
        {"delay": Delay(0)},
        {"duplicate": 1.0},
    ],
)
def test_changing_one_option_does_not_change_the_faults_of_others(more: dict[str, Any]) -> None:
    changed = plans(dataclasses.replace(ALL, **more))
    for before, after in zip(plans(ALL), changed, strict=True):
        assert "html" in more or before.fate is after.fate
        assert "duplicate" in more or before.duplicates_after_us == after.duplicates_after_us
        assert "delay" in more or before.request.delay_us == after.request.delay_us
        assert "truncate" in more or before.request.cut_at == after.request.cut_at
        assert "flip" in more or before.response.flips == after.response.flips


def test_faults_are_as_frequent_as_asked() -> None:
    planned = plans(ALL, 2000)
    fates = {fate: sum(plan.fate is fate for plan in planned) / len(planned) for fate in Fate}
    assert fates[Fate.ANSWERED] == pytest.approx(1 - 0.9 * 0.9, abs=0.04)
    assert fates[Fate.REQUEST_DROPPED] == pytest.approx(0.81 * 0.2, abs=0.04)
    assert fates[Fate.ANSWER_REPLACED] == pytest.approx(0.81 * 0.8 * 0.1, abs=0.04)
    assert fates[Fate.RESPONSE_DROPPED] == pytest.approx(0.81 * 0.8 * 0.9 * 0.3, abs=0.04)
    delays = [plan.response.delay_us for plan in planned]
    assert (min(delays) >= 100, max(delays) <= 300) == (True, True)
    assert max(delays) - min(delays) > 150
    cut = [plan.request for plan in planned if plan.request.cut_at is not None]
    assert len(cut) / len(planned) == pytest.approx(0.2, abs=0.04)
    assert sum(body.is_short for body in cut) / len(cut) == pytest.approx(0.5, abs=0.1)
    assert {len(plan.response.flips) for plan in planned} == set(range(9))


def test_of_several_certain_fates_the_first_wins_and_duplicates_add_up() -> None:
    assert {plan.fate for plan in plans(FaultProxyOptions(drop_request=Drop(1), drop_response=Drop(1)))} == {
        Fate.REQUEST_DROPPED
    }
    first, second = Status(503, 1, after=True), Status(429, 1)
    plan = plan_exchange(FaultProxyOptions(statuses=(first, second), html=Html(1)), 1)
    assert (plan.fate, plan.answer) == (Fate.ANSWERED, second)
    plan = plan_exchange(FaultProxyOptions(statuses=(first,), drop_response=Drop(1)), 1)
    assert (plan.fate, plan.answer) == (Fate.ANSWER_REPLACED, first)
    both = FaultProxyOptions(duplicate=1, late_duplicate=LateDuplicate(1, 5))
    assert plan_exchange(both, 1).duplicates_after_us == ((FaultKind.DUPLICATE, 0), (FaultKind.LATE_DUPLICATE, 5))


def test_faults_may_be_limited_to_one_side() -> None:
    options = FaultProxyOptions(truncate=Truncate(1, "request", "cut"), flip=Flip(1, "response"))
    plan = plan_exchange(options, 1)
    assert (plan.request.cut_at is None, plan.request.is_short, plan.request.flips) == (False, False, ())
    assert plan.response.cut_at is None
    assert len(plan.response.flips) == 1
    assert plan_exchange(FaultProxyOptions(truncate=Truncate(1, "response", "short")), 1).request == NO_HARM


@in_loop
async def test_the_same_seed_and_order_give_the_same_trace() -> None:
    async def run(seed: int) -> list[tuple[Any, ...]]:
        options = {name: getattr(ALL, name) for name in ("drop_request", "truncate", "flip", "statuses", "html")}
        async with Rig(seed=seed, drop_response=Drop(0.3), **options) as rig:
            for _ in range(25):
                client = await rig.connect()
                await client.request(body=bytes(5000))
                await client.ended_or_answered()
            return [dataclasses.astuple(_Timeless(*r)) for r in map(_timeless, rig.records)]

    first = await run(7)
    assert len(first) > 20
    assert await run(7) == first
    assert await run(8) != first


@dataclasses.dataclass
class _Timeless:
    cause: str
    exchange: int
    size_bytes: int
    status: int
    count: int
    text: str


def _timeless(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, field.name) for field in dataclasses.fields(_Timeless))
