"""Lists of relays in options and variables of the environment."""

import pytest

from tunnel.ground.relay_lists import pair_tokens, split_files, split_relays

A, B = "https://a.example/x,y", "http://b.example:8080"


@pytest.mark.parametrize("text", [f"{A},{B}", f"{A} {B}", f" {A},\n{B} ", f"{A}\n{B}"])
def test_commas_and_white_space_divide_relays_but_not_a_path(text: str) -> None:
    assert split_relays(text) == [A, B]


def test_no_text_names_no_relay_and_no_file() -> None:
    assert (split_relays(" "), split_files("")) == ([], [])
    assert split_files("my token\nb,c") == ["my token", "b,c"]


def test_each_relay_has_its_own_token_or_none_has_one() -> None:
    assert pair_tokens([A, B], ["1", "2"]) == [(A, "1"), (B, "2")]
    assert pair_tokens([A, B], []) == [(A, None), (B, None)]


@pytest.mark.parametrize(
    ("urls", "tokens", "said"),
    [
        ([A, B], ["1"], "2 relays are named, but 1 token:"),
        ([A], ["1", "2"], "1 relay is named, but 2 tokens:"),
    ],
)
def test_a_token_never_goes_to_a_relay_by_chance(urls: list[str], tokens: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pair_tokens(urls, tokens)
