"""Clauses 3.1 and 3.3: ids and route keys rest for four minutes."""

from tunnel.core.constants import SECOND_US
from tunnel.core.rest import RestingPlace

REST_US = 240 * SECOND_US


def test_ids_and_answers_rest_for_four_minutes() -> None:
    rest = RestingPlace()
    rest.add(7, ("ann", b"key"), b"gone", 100)
    assert rest.has_id(7)
    assert not rest.has_id(8)
    assert rest.answer(("ann", b"key"), 100 + REST_US - 1) == b"gone"
    assert rest.answer(("bob", b"key"), 100) is None
    assert rest.answer(("ann", b"key"), 100 + REST_US) is None
    assert not rest.has_id(7)
    assert len(rest) == 0


def test_adding_forgets_what_is_old() -> None:
    rest = RestingPlace()
    for number in range(1, 100):
        rest.add(number, ("", bytes([number])), b"", number * REST_US // 10)
    assert len(rest) == 10
    assert not rest.has_id(89)
    assert rest.has_id(90)


def test_the_same_may_rest_twice() -> None:
    rest = RestingPlace()
    for now in (100, 200):
        rest.add(7, ("ann", b"key"), b"gone", now)
    assert rest.answer(("ann", b"key"), 300 + REST_US) is None
    assert len(rest) == 0
