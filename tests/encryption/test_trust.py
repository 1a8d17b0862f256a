"""Which keys and answers an initiator accepts, for every mode; and that the tables are complete."""

import os
from itertools import product
from pathlib import Path

import pytest

from tunnel.encryption.binding import VERDICT_SAME, binding_of
from tunnel.encryption.decisions import ACCEPTING, OPENING, Accepting, Answer, Mode, Opening
from tunnel.encryption.known_peers import EXIT, KnownPeers
from tunnel.encryption.settings import Encryption
from tunnel.encryption.trust import PeerTrust, TrustSettings, trust_settings
from tunnel.errors import PeerKeyError
from tunnel.wire import Target, TargetKind

A, B = ("SHA256:" + letter * 43 for letter in "AB")
RELAY = "https://relay.example"
TARGET = Target(TargetKind.TCP, "db", 5432)


def settings(mode: Mode, file: KnownPeers | None = None, *keys: str) -> TrustSettings:
    return trust_settings(mode.value, RELAY, keys, file)


@pytest.fixture
def file(tmp_path: Path) -> KnownPeers:
    return KnownPeers(tmp_path / "known_peers")


def test_the_tables_have_a_row_for_every_case() -> None:
    answers = {False: {Answer.CLEAR, Answer.NEW_KEY}, True: set(Answer) - {Answer.NEW_KEY}}
    wanted = {
        (mode, known, answer)
        for mode, known in product((Mode.AUTO, Mode.REQUIRE), (False, True))
        for answer in answers[known]
    }
    assert set(OPENING) == wanted
    assert set(ACCEPTING) == set(product(Mode, (False, True)))


def test_nothing_goes_on_in_clear_once_a_key_is_known_or_encryption_required() -> None:
    clear = [row for row, decision in OPENING.items() if decision is Opening.GO_ON_CLEAR]
    assert clear == [(Mode.AUTO, False, Answer.CLEAR)]
    refused = {row for row, decision in OPENING.items() if decision is Opening.REFUSE_KEY}
    assert refused == {row for row in OPENING if row[2] is Answer.OTHER_KEY}
    assert ACCEPTING[Mode.REQUIRE, False] is Accepting.REFUSE


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.REQUIRE])
def test_the_first_key_is_taken_on_trust_and_then_nothing_else(file: KnownPeers, mode: Mode) -> None:
    first = PeerTrust(settings(mode, file), TARGET)
    assert first.judge_key(A) is None
    assert not first.is_verified
    known = file.find(RELAY, EXIT)
    assert known is not None
    assert known.keys == (A,)
    again = PeerTrust(settings(mode, file), TARGET)
    assert again.judge_key(A) is None
    assert again.is_verified
    changed = PeerTrust(settings(mode, file), TARGET)
    error = changed.judge_key(B)
    assert isinstance(error, PeerKeyError)
    assert error.exit_code == 4
    for part in (RELAY, "exit", A, B, str(file.path), "line 1"):
        assert part in str(error)
    assert not changed.is_verified
    clear = PeerTrust(settings(mode, file), TARGET).judge_clear()
    assert isinstance(clear, PeerKeyError)
    assert "would not be encrypted" in str(clear)
    assert A in str(clear)


def test_without_a_known_key_auto_goes_on_in_clear_and_require_does_not(file: KnownPeers) -> None:
    assert PeerTrust(settings(Mode.AUTO, file), TARGET).judge_clear() is None
    error = PeerTrust(settings(Mode.REQUIRE), TARGET).judge_clear()
    assert isinstance(error, PeerKeyError)
    assert "encryption is required" in str(error)


def test_a_peer_that_answered_in_clear_gets_no_other_offer_for_two_seconds(
    file: KnownPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = 1_000_000_000
    monkeypatch.setattr("tunnel.encryption.trust.now_us", lambda: now_us)
    encryption = Encryption(settings(Mode.AUTO, file))
    service = Target(TargetKind.SERVICE, "db")
    offer = encryption.offer(TARGET)
    assert offer is not None
    assert encryption.offer(TARGET) is not None  # no answer has come
    assert offer.trust.judge_clear() is None
    now_us += 1_999_999
    assert encryption.offer(TARGET) is None
    assert encryption.offer(service) is not None  # which is another peer
    now_us += 1
    assert encryption.offer(TARGET) is not None


def test_an_offer_is_made_whenever_a_stream_in_clear_would_be_refused(file: KnownPeers) -> None:
    for mode in (Mode.AUTO, Mode.REQUIRE):
        chosen = settings(mode, file)
        clear = PeerTrust(settings(Mode.AUTO, None), TARGET)
        assert clear.judge_clear() is None
        chosen.clear_until_us[RELAY, EXIT] = 1 << 62
        if mode is Mode.AUTO:
            assert not PeerTrust(chosen, TARGET).may_offer
            file.remember(RELAY, EXIT, A)  # another process has seen its key
        assert PeerTrust(chosen, TARGET).may_offer
    assert PeerTrust(settings(Mode.AUTO, None, A), TARGET).may_offer


def test_answers_of_very_many_peers_are_not_all_remembered() -> None:
    chosen = settings(Mode.AUTO)
    for number in range(3000):
        assert PeerTrust(chosen, Target(TargetKind.SERVICE, f"s{number}")).judge_clear() is None
    assert len(chosen.clear_until_us) <= 1000
    assert not PeerTrust(chosen, Target(TargetKind.SERVICE, "s2999")).may_offer


@pytest.mark.parametrize("known", [(A,), ()])
def test_an_inline_exit_is_named_as_the_cause(known: tuple[str, ...]) -> None:
    error = PeerTrust(settings(Mode.REQUIRE, None, *known), TARGET).judge_clear(by_inline_exit=True)
    assert isinstance(error, PeerKeyError)
    for part in ("inline exit", "tunnel-relay exit", 'exit = "none"', *known, RELAY):
        assert part in str(error)


def test_an_inline_exit_does_not_end_a_connection_that_may_be_in_clear() -> None:
    assert PeerTrust(settings(Mode.AUTO), TARGET).judge_clear(by_inline_exit=True) is None


def test_two_processes_that_see_different_keys_first_do_not_both_go_on(file: KnownPeers) -> None:
    one = PeerTrust(settings(Mode.AUTO, file), TARGET)
    two = PeerTrust(settings(Mode.AUTO, file), TARGET)
    assert one.judge_key(A) is None
    assert isinstance(two.judge_key(B), PeerKeyError)


def test_if_keys_are_given_only_these_are_accepted(file: KnownPeers) -> None:
    file.remember(RELAY, EXIT, B)
    given = PeerTrust(settings(Mode.AUTO, file, A), TARGET)
    assert isinstance(given.judge_key(B), PeerKeyError)
    assert given.judge_key(A) is None
    assert given.is_verified
    assert isinstance(PeerTrust(settings(Mode.AUTO, None, A), TARGET).judge_clear(), PeerKeyError)


def test_a_service_has_a_key_of_its_own(file: KnownPeers) -> None:
    file.remember(RELAY, EXIT, B)
    assert PeerTrust(settings(Mode.AUTO, file), Target(TargetKind.SERVICE, "exit")).judge_key(A) is None


def test_two_users_a_relay_of_the_list_offers_no_other_key_than_those_known_at_any_of_them(file: KnownPeers) -> None:
    """A hostile relay that is used only because the first one is away must not pass off a key of its own as new."""
    relays = (RELAY, "https://other.example")
    here, there = (trust_settings("auto", relay, (), file, relays) for relay in relays)
    assert PeerTrust(here, TARGET).judge_key(A) is None
    other = PeerTrust(there, TARGET)
    error = other.judge_key(B)
    assert isinstance(error, PeerKeyError)
    assert f"{file.path}, line 1, has {A}" in str(error)
    assert other.judge_key(A) is None
    assert other.is_verified
    assert isinstance(PeerTrust(there, TARGET).judge_clear(), PeerKeyError)
    file.trust(relays[1], EXIT, B)
    both = [PeerTrust(each, TARGET) for each in (here, there)]
    assert [one.judge_key(key) for one in both for key in (A, B)] == [None] * 4


def test_a_damaged_file_stops_the_connection(file: KnownPeers) -> None:
    file.path.touch(0o600)
    file.path.write_text("nonsense")
    with pytest.raises(PeerKeyError, match="line 1"):
        PeerTrust(settings(Mode.AUTO, file), TARGET)


def test_a_key_that_cannot_be_remembered_is_not_trusted(tmp_path: Path) -> None:
    file = KnownPeers(tmp_path / "known_peers")
    trust = PeerTrust(settings(Mode.AUTO, file), TARGET)
    (tmp_path / f".known_peers.{os.getpid()}").mkdir()
    error = trust.judge_key(A)
    assert isinstance(error, PeerKeyError)
    assert "cannot be remembered" in str(error)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="off, auto, require, not 'on'"):
        trust_settings("on", RELAY, (), None)
    with pytest.raises(ValueError, match="is not a key"):
        trust_settings("auto", RELAY, ("SHA256:x",), None)
    with pytest.raises(ValueError, match="encryption is off"):
        trust_settings("off", RELAY, (A,), None)
    assert trust_settings("auto", RELAY, (A,), None).mode is Mode.REQUIRE


def test_the_binding_differs_with_target_and_route() -> None:
    key = bytes(range(16))
    one = binding_of(TARGET, key)
    assert one == b"\x01\x01\x15\x38\x02db" + key
    others = [
        binding_of(Target(TargetKind.TCP, "db", 5433), key),
        binding_of(Target(TargetKind.TCP, "dbx", 5432), key),
        binding_of(Target(TargetKind.SERVICE, "db"), key),
        binding_of(TARGET, bytes(16)),
    ]
    assert len({one, *others}) == 5
    assert VERDICT_SAME == b"\x01"
