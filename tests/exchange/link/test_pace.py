"""The size of a link's batches."""

from tunnel.exchange.link.pace import LinkPace

KIB = 1024
MS = 1_000


def after(size_share: float, took_us: int, times: int = 1) -> int:
    """Return the limit after `times` batches, each of this share of the limit, and receipted after `took_us`."""
    pace = LinkPace()
    for _ in range(times):
        pace.on_sent(round(pace.batch_bytes * size_share), 1000)
        pace.on_receipted(1000 + took_us)
    return pace.batch_bytes


def test_full_batches_that_are_receipted_soon_double_the_limit() -> None:
    assert after(1, 0, times=0) == 128 * KIB
    assert after(0.75, 100 * MS - 1) == 256 * KIB
    assert after(1, 0, times=2) == 512 * KIB
    assert after(1, 0, times=9) == 1024 * KIB


def test_batches_that_are_not_full_or_not_receipted_soon_leave_the_limit() -> None:
    assert after(0.74, 0) == 128 * KIB
    assert after(1, 100 * MS) == 128 * KIB
    assert after(1, 500 * MS) == 128 * KIB


def test_late_receipts_halve_the_limit_whatever_the_size() -> None:
    assert after(0.01, 500 * MS + 1) == 64 * KIB
    assert after(1, 501 * MS, times=9) == 16 * KIB


def test_receipts_belong_to_the_oldest_batches() -> None:
    pace = LinkPace()
    assert not pace.waits
    pace.on_sent(128 * KIB, 0)
    pace.on_sent(1, 400 * MS)
    pace.on_receipted(600 * MS)
    assert (pace.batch_bytes, pace.waits) == (64 * KIB, True)
    pace.on_receipted(600 * MS)
    assert (pace.batch_bytes, pace.waits) == (64 * KIB, False)


def test_no_receipt_is_awaited_after_forget() -> None:
    pace = LinkPace()
    pace.on_sent(1, 0)
    pace.forget()
    assert not pace.waits


def test_a_receipt_tells_when_its_batch_was_sent() -> None:
    pace = LinkPace()
    pace.on_sent(1, 10)
    pace.on_sent(1, 20)
    assert (pace.on_receipted(90), pace.on_receipted(90)) == (10, 20)
