"""Clause 1.6: serial-number arithmetic (RFC 1982) on 32 bits."""

from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import u32
from tunnel.wire.sequence import MODULUS, distance, is_before, unwrap, wrap

HALF = MODULUS // 2
numbers = st.integers(0, 2**70)
steps = st.integers(-(HALF - 1), HALF - 1)


def test_wrap_keeps_32_bits() -> None:
    assert wrap(MODULUS - 1) == MODULUS - 1
    assert wrap(MODULUS) == 0
    assert wrap(-1) == MODULUS - 1


@given(numbers, steps)
def test_unwrap_undoes_wrap_within_half_a_circle(near: int, step: int) -> None:
    assert unwrap(wrap(near + step), near) == near + step


@given(u32, numbers)
def test_unwrap_is_congruent_and_nearest(wire: int, near: int) -> None:
    number = unwrap(wire, near)
    assert wrap(number) == wire
    assert -HALF < number - near <= HALF


def test_unwrap_takes_the_higher_of_two_equally_near_numbers() -> None:
    near = 7 * MODULUS + 5
    assert unwrap(wrap(near + HALF), near) == near + HALF


def test_unwrap_crosses_the_wrap_both_ways() -> None:
    assert unwrap(3, MODULUS - 2) == MODULUS + 3
    assert unwrap(MODULUS - 2, MODULUS + 3) == MODULUS - 2


@given(numbers, steps)
def test_distance_is_the_signed_step(number: int, step: int) -> None:
    assert distance(wrap(number), wrap(number + step)) == step


@given(numbers, steps)
def test_is_before_agrees_with_distance(number: int, step: int) -> None:
    assert is_before(wrap(number), wrap(number + step)) == (step > 0)


@given(u32)
def test_half_the_circle_apart_neither_is_before_the_other(a: int) -> None:
    b = wrap(a + HALF)
    assert distance(a, b) == distance(b, a) == -HALF
    assert not is_before(a, b)
    assert not is_before(b, a)
