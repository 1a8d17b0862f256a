"""Text from elsewhere is made printable: nothing in it controls a terminal, and the rest stays as it is."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.ground.printable import ascii_json, printable, printable_lines

DANGEROUS = [
    *map(chr, (*range(0x20), 0x7F, *range(0x80, 0xA0))),  # C0, DEL, C1
    *"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",  # bidirectional controls
    *"\u2028\u2029",  # separators
    *"\u00ad\u200b\ufeff\U000e0041",  # invisible: soft hyphen, zero width space, BOM, a tag
    "\ud800",
]


@pytest.mark.parametrize("letter", DANGEROUS)
def test_what_could_control_a_terminal_is_shown_as_an_escape(letter: str) -> None:
    shown = printable(f"a{letter}b")
    assert re.fullmatch(r"a\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[nrt])b", shown)
    assert shown[1:-1].encode().decode("unicode_escape") == letter
    kept = {"\n", "\t"} & {letter}
    assert printable_lines(f"a{letter}b") == (f"a{letter}b" if kept else shown)


@pytest.mark.parametrize("text", ["", "plain ~", "Grüße, 漢字\u3000かな", "un\u00a0mot", "🙂", "\\x1b as it was typed"])
def test_text_that_prints_stays(text: str) -> None:
    assert printable(text) == printable_lines(text) == text


@given(st.text())
def test_lines_differ_from_one_line_only_in_their_layout(text: str) -> None:
    assert printable_lines(text).replace("\n", "\\n").replace("\t", "\\t") == printable(text)


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_in_ascii_is_the_same_json(value: object) -> None:
    text = ascii_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert re.fullmatch(r"[\n -~]*", text)
    assert json.loads(text) == value
