"""When HTTP connections are reused: no longer if reused ones die often, but again as soon as a new one dies as well,
because this shows that reuse was not the reason.
"""

from tunnel.carriers.http.reuse import Reuse


def died(reuse: Reuse, *times_s: float, reused: bool = True) -> None:
    for now_s in times_s:
        reuse.on_died(now_s, reused=reused)


def test_three_deaths_within_a_minute_end_reuse_for_ten_minutes() -> None:
    reuse = Reuse()
    died(reuse, 100, 130)
    assert reuse.is_wise(130)
    died(reuse, 160)
    assert not reuse.is_wise(160)
    assert not reuse.is_wise(759.9)
    assert reuse.is_wise(760)
    died(reuse, 761, 762)
    assert reuse.is_wise(762)


def test_deaths_that_are_far_apart_do_not_end_reuse() -> None:
    reuse = Reuse()
    died(reuse, 100, 130, 161, 192)
    assert reuse.is_wise(192)


def test_deaths_of_new_connections_do_not_end_reuse() -> None:
    reuse = Reuse()
    died(reuse, *range(100, 120), reused=False)
    assert reuse.is_wise(120)


def test_connections_are_reused_for_ten_minutes_if_new_ones_die_as_well() -> None:
    reuse = Reuse()
    died(reuse, 100, 101, 102)
    died(reuse, 103)  # its request was sent before reuse ended
    assert not reuse.is_wise(104)
    died(reuse, 105, reused=False)
    assert reuse.is_wise(105)
    died(reuse, *range(106, 700))
    assert reuse.is_wise(704)
    died(reuse, 705, 706, 707)
    assert not reuse.is_wise(707)
