"""The format in which bodies pass: what is learned from refusals and answers, and when the plain one is tried again."""

from itertools import pairwise

from tunnel.exchange.path.body_formats import BodyFormats
from tunnel.wire import BodyFormat

SECOND = 1_000_000
PLAIN, FORM, JSON, TEXT = BodyFormat


def in_text(at_us: int = 0) -> BodyFormats:
    """Formats of a path on which a plain body of 1000 bytes was refused, and one as JSON passed."""
    formats = BodyFormats()
    formats.on_refused(PLAIN, 1000)
    formats.on_passed(JSON, 1000, at_us)
    return formats


def test_all_formats_are_tried_in_turn() -> None:
    formats = BodyFormats()
    assert (formats.now, formats.count, formats.is_text) == (PLAIN, 4, False)
    assert [formats.after(each) for each in BodyFormat] == [FORM, JSON, TEXT, PLAIN]


def test_a_request_for_a_stream_never_leaves_as_text() -> None:
    formats = in_text()
    assert [formats.after(each, streams=True) for each in BodyFormat] == [FORM, PLAIN, PLAIN, PLAIN]
    assert (formats.usual(streams=True), formats.usual(streams=False)) == (PLAIN, JSON)


def test_a_relay_that_does_not_understand_text_gets_none() -> None:
    formats = in_text()
    formats.unknown_to_relay()
    assert (formats.now, formats.count) == (PLAIN, 2)
    assert [formats.after(each) for each in BodyFormat] == [FORM, PLAIN, PLAIN, PLAIN]


def test_a_smaller_body_than_one_that_was_refused_proves_nothing() -> None:
    formats = in_text()
    formats.on_passed(PLAIN, 999, 0)
    assert formats.now is JSON
    formats.on_passed(PLAIN, 1000, 0)
    assert formats.now is PLAIN


def test_the_smallest_refused_body_counts_until_one_of_its_size_passes() -> None:
    formats = in_text()
    formats.on_refused(PLAIN, 500)
    formats.on_refused(PLAIN, 700)
    formats.on_passed(PLAIN, 500, 0)
    assert formats.now is PLAIN
    formats.on_passed(JSON, 10, 0)
    formats.on_passed(PLAIN, 10, 0)
    assert formats.now is PLAIN


def test_any_format_is_believed_when_the_present_one_fails() -> None:
    formats = in_text()
    formats.on_refused(JSON, 60)
    formats.on_passed(PLAIN, 59, 0)
    assert formats.now is JSON
    formats.on_passed(PLAIN, 60, 0)
    assert formats.now is PLAIN


def test_the_plain_format_is_tried_again_ever_later_with_bodies_that_can_prove_it() -> None:
    formats = in_text(at_us=SECOND)
    assert not formats.is_due(1000, 2 * SECOND - 1)
    assert not formats.is_due(999, 2 * SECOND)
    tries = [now for now in range(2 * SECOND, 4000 * SECOND, SECOND) if formats.is_due(1000, now)]
    waits = [(later - earlier) // SECOND for earlier, later in pairwise(tries)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600, 600]


def test_another_format_than_text_is_not_tried_again() -> None:
    formats = BodyFormats()
    formats.on_passed(FORM, 1000, 0)
    assert not formats.is_due(1000, 1000 * SECOND)
