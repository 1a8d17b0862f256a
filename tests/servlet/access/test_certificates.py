"""Names in certificates, and the users whose they are."""

import re

import pytest

from tunnel_servlet.access.certificates import CertificateTable, names_in, parse_certificate_name

PRINT = "ab" * 32


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DNS:Ann.Example", "DNS:ann.example"),
        ("dns:ann.example", "DNS:ann.example"),
        ("URI:spiffe://example/Ann", "URI:spiffe://example/Ann"),
        ("email:Ann@example.com", "email:Ann@example.com"),
        ("CN:Ann Example", "CN:Ann Example"),
        ("sha256:" + "AB:" * 31 + "AB", f"SHA256:{PRINT}"),
        (f"SHA256:{PRINT}", f"SHA256:{PRINT}"),
    ],
)
def test_a_name_has_one_form(text: str, name: str) -> None:
    assert parse_certificate_name(text) == name


NO_NAME = (
    " is not a name in a certificate: write it as in DNS:ann.example, URI:spiffe://example/ann, "
    "email:ann@example.com, CN:ann or SHA256:FINGERPRINT"
)
NO_DIGEST = ": a fingerprint is 64 hex digits: `openssl x509 -in FILE -noout -fingerprint -sha256`"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, NO_NAME) for text in ("", "ann", "DNS:", "DNS: ann", "O:ann", ":ann", "CN:a\nb")),
        ("SHA256:ab", NO_DIGEST),
        (f"SHA256:{PRINT}0", NO_DIGEST),
        ("DNS:*.example", ": a name with * is not taken for others: write whole names"),
    ],
)
def test_other_texts_are_refused_with_the_form_of_a_name(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(repr(text) + why)}$"):
        parse_certificate_name(text)


def test_the_names_of_a_certificate_are_those_that_the_authority_has_signed() -> None:
    found = {
        "subject": ((("organizationName", "DNS:bob.example"),), (("commonName", "Ann"),)),
        "subjectAltName": (("DNS", "ANN.example"), ("URI", "DNS:bob.example"), ("IP Address", "127.0.0.1")),
    }
    assert names_in(found, PRINT.upper()) == ("DNS:ann.example", "URI:DNS:bob.example", "CN:Ann", f"SHA256:{PRINT}")


def test_two_users_a_letter_that_only_becomes_ascii_is_another() -> None:
    """In lower case, the sign of Kelvin is a k. An authority that checks names byte by byte takes it for none."""
    assert "DNS:kate.example" not in names_in({"subjectAltName": (("DNS", "\u212aate.example"),)}, PRINT)


def test_of_several_common_names_none_counts() -> None:
    assert names_in({"subject": ((("commonName", "ann"), ("commonName", "bob")),)}, PRINT) == (f"SHA256:{PRINT}",)
    assert names_in({}, PRINT) == (f"SHA256:{PRINT}",)


def test_two_users_a_certificate_belongs_to_the_users_of_its_names() -> None:
    table = CertificateTable({"ann": ["CN:ann", f"SHA256:{PRINT}"], "bob": ["DNS:bob.example"], "eve": []})
    assert table.users_of(["CN:ann", f"SHA256:{PRINT}", "CN:eve"]) == ["ann"]
    assert table.users_of(["DNS:bob.example", "CN:ann"]) == ["bob", "ann"]
    assert table.users_of(["CN:bob.example", "DNS:ann"]) == []
    assert [table.has_user(user) for user in ("ann", "eve", "zoe")] == [True, False, False]
    assert CertificateTable({"ann": ["CN:ann"]})
    assert not CertificateTable({"ann": []})
