"""Which secrets a request sends after they were replaced, and what follows from the answers to them."""

import pytest

from tunnel.carriers.dialing.dial_secrets import DialSecrets, SecretsInUse
from tunnel.carriers.dialing.dialing import Dialing


def secrets(token: str) -> DialSecrets:
    return DialSecrets({"Authorization": token}, {}, None)


class Rotation:
    """Secrets that were renewed once. `refusals`: the statuses that were reported as refusals of the new ones."""

    def __init__(self) -> None:
        self.old, self.new = secrets("old"), secrets("new")
        self.refusals: list[int] = []
        self.used = SecretsInUse(self.old)
        self.used.renew(self.new, self.refusals.append)


def test_without_other_secrets_a_refused_request_is_not_repeated() -> None:
    only = secrets("only")
    used = SecretsInUse(only)
    for status in (401, 403, 404, 407):
        assert not used.on_answered(only, status)
    assert not used.on_answered(only, 404, by_relay=True)
    assert used.now is only


def test_new_secrets_are_used_at_once_and_the_old_ones_forgotten_once_the_relay_has_answered() -> None:
    found = Rotation()
    assert found.used.now is found.new
    assert not found.used.on_answered(found.new, 200, by_relay=True)
    assert not found.used.on_answered(found.new, 401, by_relay=True)
    assert found.used.now is found.new
    assert found.refusals == []


def test_a_request_with_the_old_secrets_that_is_refused_is_repeated_with_the_new_ones() -> None:
    found = Rotation()
    found.used.on_answered(found.new, 200, by_relay=True)
    assert found.used.on_answered(found.old, 401, by_relay=True)
    assert found.used.now is found.new


@pytest.mark.parametrize("status", [200, 302, 401, 403])
def test_refused_new_secrets_give_way_to_the_old_ones_and_are_tried_again_when_these_are_refused(status: int) -> None:
    found = Rotation()
    assert found.used.on_answered(found.new, status)
    assert found.used.now is found.old
    assert not found.used.on_answered(found.old, 200, by_relay=True)
    assert found.used.on_answered(found.old, status)
    assert found.used.now is found.new
    assert found.refusals == [status]


def test_a_request_whose_new_and_old_secrets_are_both_refused_is_not_repeated() -> None:
    found = Rotation()
    assert found.used.on_answered(found.new, 401, by_relay=True)
    assert not found.used.on_answered(found.old, 401, by_relay=True)


def test_a_refused_password_is_not_sent_to_the_proxy_again() -> None:
    found = Rotation()
    assert found.used.on_answered(found.new, 407)
    assert found.used.now is found.old
    assert not found.used.on_answered(found.old, 200, by_relay=True)
    assert not found.used.on_answered(found.old, 407)
    assert found.used.now is found.old


def test_an_attachment_that_the_relay_knows_only_under_the_old_token_is_reported() -> None:
    found = Rotation()
    assert not found.used.on_answered(found.new, 404)  # an intermediary answered
    assert found.used.on_answered(found.new, 404, by_relay=True)
    assert found.refusals == []
    assert found.used.now is found.old
    assert not found.used.on_answered(found.old, 200, by_relay=True)
    assert not found.used.on_answered(found.old, 200, by_relay=True)
    assert found.refusals == [404]


def test_a_relay_that_has_restarted_is_attached_to_with_the_new_secrets() -> None:
    found = Rotation()
    assert found.used.on_answered(found.new, 404, by_relay=True)
    assert not found.used.on_answered(found.old, 404, by_relay=True)
    assert found.used.now is found.new
    assert found.refusals == []
    assert not found.used.on_answered(found.new, 200, by_relay=True)
    assert not found.used.on_answered(found.new, 401, by_relay=True)


def test_a_relay_that_has_restarted_and_refuses_the_old_token_is_attached_to_with_the_new_one() -> None:
    found = Rotation()
    assert found.used.on_answered(found.new, 404, by_relay=True)
    assert found.used.on_answered(found.old, 401, by_relay=True)
    assert not found.used.on_answered(found.new, 404, by_relay=True)
    assert found.used.now is found.new
    assert found.refusals == []


def test_failures_that_say_nothing_about_secrets_change_nothing() -> None:
    found = Rotation()
    for status in (408, 413, 429, 500, 502, 503, 504):
        assert not found.used.on_answered(found.new, status)
        assert not found.used.on_answered(found.new, status, by_relay=True)
    assert found.used.now is found.new
    assert found.used.on_answered(found.new, 401)
    assert found.used.now is found.old


def test_after_two_renewals_without_an_answer_the_secrets_that_worked_are_kept() -> None:
    found = Rotation()
    newer = secrets("newer")
    found.used.renew(newer, found.refusals.append)
    assert found.used.on_answered(newer, 401)
    assert found.used.now is found.old


def test_no_secret_is_shown() -> None:
    assert "s3cret" not in repr(secrets("s3cret"))


def test_other_secrets_are_checked_and_another_proxy_is_refused() -> None:
    dialing = Dialing("https://relay.example", token="tnl_a", proxy="http://me:old@proxy:3128")
    before = dialing.secrets
    with pytest.raises(ValueError, match="the token is empty or has invalid characters"):
        dialing.other_secrets("two words", {}, "http://me:old@proxy:3128")
    with pytest.raises(ValueError, match="make a new attachment"):
        dialing.other_secrets("tnl_b", {}, "http://other:3128")
    assert dialing.secrets is before
    made = dialing.other_secrets("tnl_b", {"X-Key": "value"}, "http://me:new@proxy:3128")
    assert made.headers["Authorization"] == "Bearer tnl_b"
    assert made.gateway_headers == {"X-Key": "value"}
