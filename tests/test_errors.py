"""Every refusal and every loss becomes an OSError that states its cause; every refusal also says what to do next."""

import errno

import pytest

from tunnel import errors
from tunnel.core import Lost, Refused
from tunnel.errors import (
    DeniedError,
    IntegrityError,
    LostError,
    LostReason,
    NotAuthenticatedError,
    RefusedError,
    RejectReason,
    ResetError,
    TunnelError,
    UnreachableError,
    lost_error,
    refused_error,
)


@pytest.mark.parametrize("reason", RejectReason)
def test_a_refusal_says_what_to_do(reason: RejectReason) -> None:
    error = refused_error(Refused(1, reason, "as the relay says"), "db:5432")
    assert str(error).startswith("db:5432: as the relay says; ")
    assert error.reason is reason
    assert isinstance(error, DeniedError if reason is RejectReason.DENIED else RefusedError)


@pytest.mark.parametrize("reason", [RejectReason.DENIED, RejectReason.NO_SUCH_SERVICE])
def test_the_refusal_of_a_target_without_a_port_asks_about_a_port(reason: RejectReason) -> None:
    doubt = "without a port, db is the name of a service: did you mean db:PORT?"
    assert str(refused_error(Refused(1, reason, ""), "db")).endswith(f"; {doubt}")
    assert "did you mean" not in str(refused_error(Refused(1, reason, ""), "db:5432"))
    assert "did you mean" not in str(refused_error(Refused(1, RejectReason.BUSY, ""), "db"))


def test_refusals_have_the_errno_of_a_socket_error() -> None:
    numbers = {reason: RefusedError("", reason).errno for reason in RejectReason}
    assert numbers[RejectReason.REFUSED] == errno.ECONNREFUSED
    assert numbers[RejectReason.UNREACHABLE] == errno.EHOSTUNREACH
    assert numbers[RejectReason.TIMED_OUT] == errno.ETIMEDOUT


@pytest.mark.parametrize("reason", LostReason)
def test_a_loss_states_its_cause(reason: LostReason) -> None:
    error = lost_error(Lost(1, reason, ""), "db:5432")
    assert reason.value in str(error)
    assert error.reason is reason
    assert isinstance(error, ConnectionError)
    kinds = {LostReason.INTEGRITY: IntegrityError, LostReason.TIMEOUT: LostError}
    assert type(error) is kinds.get(reason, ResetError)


def test_each_kind_of_error_has_its_exit_code() -> None:
    codes = {
        UnreachableError: 3,
        NotAuthenticatedError: 4,
        DeniedError: 5,
        RefusedError: 6,
        LostError: 6,
        ResetError: 6,
        IntegrityError: 7,
    }
    for kind, code in codes.items():
        assert kind.exit_code == code  # type: ignore[attr-defined]
        assert issubclass(kind, TunnelError)
        assert issubclass(kind, OSError)
    assert issubclass(ResetError, ConnectionResetError)
    assert issubclass(RefusedError, ConnectionRefusedError)
    assert set(errors.__all__) >= {kind.__name__ for kind in codes}


def test_texts_join_the_target_the_cause_and_the_advice() -> None:
    refused = {
        "full": "db:5432: full; there is no room for another connection: try again later, or raise the limits",
        "": "db:5432: there is no room for another connection: try again later, or raise the limits",
    }
    for said, text in refused.items():
        assert str(refused_error(Refused(1, RejectReason.BUSY, said), "db:5432")) == text
    gone, reset = LostReason.GONE, LostReason.RESET
    assert str(lost_error(Lost(1, gone, "replaced"), "db:5432")) == f"db:5432: {gone.value}; replaced; connect again"
    assert str(lost_error(Lost(1, reset, ""), "db:5432")) == f"db:5432: {reset.value}"


def test_a_reset_has_the_errno_of_a_reset() -> None:
    assert ResetError("").errno == errno.ECONNRESET
