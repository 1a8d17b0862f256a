"""Truncation and bit flips of bodies that arrive in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from loadtests.faultproxy.faults import NO_HARM, BodyPlan
from loadtests.faultproxy.mangle import UNKNOWN_LENGTH_BITS, Mangler

fractions = st.floats(0, 1, exclude_max=True)
plans = st.builds(
    BodyPlan,
    cut_at=st.none() | fractions,
    is_short=st.booleans(),
    flips=st.lists(st.tuples(fractions, st.integers(0, 7)), max_size=8).map(tuple),
)
bodies = st.lists(st.binary(min_size=1, max_size=50), max_size=8)


def feed(mangler: Mangler, pieces: list[bytes]) -> bytes:
    """Return the bytes that the proxy passes on."""
    out = []
    for piece in pieces:
        if mangler.ended:
            break
        out.append(mangler.feed(piece))
    return b"".join(out)


@given(plans, bodies, st.booleans())
def test_a_body_is_damaged_as_planned(plan: BodyPlan, pieces: list[bytes], known: bool) -> None:
    body = b"".join(pieces)
    mangler = Mangler(plan, len(body) if known else None)
    out = feed(mangler, pieces)
    assert out == feed(Mangler(plan, len(body) if known else None), [body] if body else [])  # pieces do not matter
    assert len(out) == mangler.passed_bytes
    if not mangler.ended:
        assert len(out) == len(body)
    if known and body and plan.cut_at is not None:
        assert mangler.ended
        assert len(out) < len(body)
        assert mangler.length == (len(out) if plan.is_short else len(body))
        assert mangler.breaks != plan.is_short
    flipped = sum((a ^ b).bit_count() for a, b in zip(out, body, strict=False))
    assert flipped <= mangler.planned_bits <= len(plan.flips)
    assert mangler.take_first_flip() or flipped == 0 or len(pieces) > 1
    if known and body and plan.flips and plan.cut_at is None:
        assert flipped == mangler.planned_bits >= 1


@given(bodies)
def test_without_a_plan_nothing_happens(pieces: list[bytes]) -> None:
    mangler = Mangler(NO_HARM, None)
    assert mangler.is_harmless
    assert feed(mangler, pieces) == b"".join(pieces)


def test_an_empty_body_cannot_be_damaged() -> None:
    mangler = Mangler(BodyPlan(cut_at=0.0, flips=((0.0, 1),)), 0)
    assert (mangler.is_harmless, mangler.ended, mangler.length) == (True, False, 0)


def test_the_place_of_a_cut_in_a_body_of_unknown_length_grows_by_powers_of_two() -> None:
    assert Mangler(BodyPlan(cut_at=0.0), None).ended
    assert feed(Mangler(BodyPlan(cut_at=0.5), None), [bytes(1 << 20)]) == bytes(2 ** (UNKNOWN_LENGTH_BITS // 2) - 1)
    late = Mangler(BodyPlan(cut_at=0.999), None)
    assert feed(late, [b"short"]) == b"short"
    assert not late.ended


def test_the_first_flip_is_reported_once() -> None:
    mangler = Mangler(BodyPlan(flips=((0.0, 0), (0.5, 1), (0.5, 1))), 4)
    assert mangler.planned_bits == 2
    assert not mangler.take_first_flip()
    assert (mangler.feed(b"\0\0"), mangler.take_first_flip()) == (b"\x01\0", True)
    assert (mangler.feed(b"\0\0"), mangler.take_first_flip()) == (b"\x02\0", False)
