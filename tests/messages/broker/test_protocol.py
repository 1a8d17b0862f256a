"""The fields of a broker's calls: names that are safe as file names, numbers within bounds, and lists of numbers."""

from __future__ import annotations

import pytest

from tunnel.messages.broker.protocol import (
    MALFORMED,
    PositionReport,
    check_name,
    join_numbers,
    number_field,
    numbers,
    text_field,
)
from tunnel.messages.calls.calls import Request
from tunnel.messages.errors import RemoteCallError

LARGEST = (1 << 63) - 1


def asked(**fields: str) -> Request:
    return Request(1, b"", fields)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "a\n", "\xe9", "a" * 201, ".new", "a\0"])
def test_names_that_are_unsafe_as_file_names_are_refused(name: str) -> None:
    with pytest.raises(RemoteCallError) as caught:
        check_name("topic", name)
    assert caught.value.code == MALFORMED


@pytest.mark.parametrize("name", ["a", "0", "Orders-2026_v1.2", "a" * 200])
def test_a_safe_name_is_returned(name: str) -> None:
    assert check_name("topic", name) == text_field(asked(topic=name), "topic") == name


def test_the_error_shows_the_refused_name_shortened_and_the_rule() -> None:
    with pytest.raises(RemoteCallError) as caught:
        check_name("group", "/" + "a" * 300)
    assert str(caught.value) == (
        f"'/{'a' * 99}' is no name for a group: use 1 to 200 letters, digits, dots, hyphens and underscores, and "
        "begin with a letter or digit"
    )


@pytest.mark.parametrize("request_", [asked(group="a"), Request(1, b"")])
def test_a_missing_name_is_refused_with_the_name_of_its_field(request_: Request) -> None:
    with pytest.raises(RemoteCallError, match=r"^'' is no name for a member:") as caught:
        text_field(request_, "member")
    assert caught.value.code == MALFORMED


@pytest.mark.parametrize("text", ["", "x", "-1", "11", "1.0", "٣٣", pytest.param("1" * 10_000, id="long")])
def test_numbers_out_of_bounds_are_refused(text: str) -> None:
    with pytest.raises(RemoteCallError) as caught:
        number_field(asked(n=text), "n", high=10)
    assert caught.value.code == MALFORMED
    assert str(caught.value) == f"the field n must be a number from 0 to 10, not {text[:50]!r}"
    with pytest.raises(
        RemoteCallError, match="must be a number"
    ):  # a default does not take the place of a wrong number
        number_field(asked(n=text), "n", 5, high=10)


def test_the_bounds_of_a_number_are_allowed_values() -> None:
    for value in (0, 7, LARGEST):
        assert number_field(asked(n=str(value)), "n") == value
    for value in (-2, 3):
        assert number_field(asked(n=str(value)), "n", low=-2, high=3) == value
    for value, low, high in ((LARGEST + 1, 0, LARGEST), (-3, -2, 3), (4, -2, 3)):
        with pytest.raises(RemoteCallError, match=f"must be a number from {low} to {high}, not '{value}'"):
            number_field(asked(n=str(value)), "n", low=low, high=high)


@pytest.mark.parametrize("request_", [asked(other="1"), Request(1, b"")])
def test_a_missing_number_has_its_default_or_is_refused(request_: Request) -> None:
    assert number_field(request_, "n", 3) == 3
    assert number_field(request_, "n", -1, -1) == -1
    with pytest.raises(RemoteCallError, match=f"^the field n must be a number from 0 to {LARGEST}, not nothing$"):
        number_field(request_, "n")


def test_lists_of_numbers_come_back_from_the_text_of_a_field() -> None:
    for values in ([], [0], [3, 0, LARGEST]):
        assert numbers(join_numbers(values)) == values
    assert join_numbers([3, 0, 7]) == "3,0,7"


def test_the_lag_of_a_group_is_never_negative_and_may_be_unknown() -> None:
    """A group's position may lie after the end: a topic in memory is empty after a restart."""
    assert [PositionReport("g", "t", 0, 5, end).lag for end in (9, 5, 3, None)] == [4, 0, 0, None]
