"""A body as the file of a form: what is wrapped can be unwrapped, and nothing else is taken for a form."""

from secrets import token_hex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.wire.form_data import FORM_TYPE, unwrap_form, wrap_form

KIND, FORM = wrap_form([b"some ", b"bytes"], lambda size: "ab" * size)
BOUNDARY = b"ab" * 16


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_what_is_wrapped_can_be_unwrapped(body: list[bytes]) -> None:
    kind, form = wrap_form([*body], token_hex)
    assert content(kind, form) == b"".join(body)


def content(kind: str, form: bytes) -> bytes | str:
    found = unwrap_form(kind, form)
    return found if isinstance(found, str) else bytes(found)


def test_a_form_is_one_file_with_a_random_boundary() -> None:
    assert FORM.startswith(
        b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="file"; filename="data.bin"\r\n'
    )
    assert FORM.endswith(b"\r\n\r\nsome bytes\r\n--" + BOUNDARY + b"--\r\n")
    assert f"{FORM_TYPE}; boundary={BOUNDARY.decode()}" == KIND
    assert wrap_form([], token_hex)[0] != wrap_form([], token_hex)[0]


@pytest.mark.parametrize(
    "kind",
    [
        f"{FORM_TYPE}; boundary={'ab' * 16}",
        f'{FORM_TYPE}; boundary="{"ab" * 16}"',
        f"{FORM_TYPE};charset=x; BOUNDARY={'ab' * 16} ; more=1",
    ],
)
def test_the_boundary_may_be_written_in_several_ways(kind: str) -> None:
    assert content(kind, FORM) == b"some bytes"
    assert content(kind, FORM.removesuffix(b"\r\n")) == b"some bytes"


@pytest.mark.parametrize(
    ("kind", "form", "problem"),
    [
        (FORM_TYPE, FORM, "no valid boundary"),
        (f"{FORM_TYPE}; boundary=", FORM, "no valid boundary"),
        (f'{FORM_TYPE}; boundary="ab', FORM, "no valid boundary"),
        (f"{FORM_TYPE}; boundary={'a' * 71}", FORM, "no valid boundary"),
        (KIND, b"", "does not begin"),
        (KIND, b"preamble\r\n" + FORM, "does not begin"),
        (KIND, FORM[:60], "do not end within 512 bytes"),
        (KIND, FORM.replace(b"\r\n\r\n", b"\r\nX: " + b"y" * 600 + b"\r\n\r\n"), "do not end within 512 bytes"),
        (KIND, FORM[:-3], "does not end"),
        (KIND, FORM + b"epilogue", "does not end"),
        (KIND, b"--" + BOUNDARY + b"\r\n\r\n--" + BOUNDARY + b"--", "does not end"),
    ],
)
def test_other_bodies_are_refused_with_a_reason(kind: str, form: bytes, problem: str) -> None:
    found = unwrap_form(kind, form)
    assert isinstance(found, str)
    assert problem in found
