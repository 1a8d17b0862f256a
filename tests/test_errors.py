"""Every refusal and every loss becomes an error that socket code knows and that says what to do next."""

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


def test_refusals_have_the_number_that_a_socket_would_have() -> None:
    numbers = {reason: RefusedError("", reason).errno for reason in RejectReason}
    assert numbers[RejectReason.REFUSED] == errno.ECONNREFUSED
    assert numbers[RejectReason.UNREACHABLE] == errno.EHOSTUNREACH
    assert numbers[RejectReason.TIMED_OUT] == errno.ETIMEDOUT


@pytest.mark.parametrize("reason", LostReason)
def test_a_loss_says_why(reason: LostReason) -> None:
    error = lost_error(Lost(1, reason, ""), "db:5432")
    assert reason.value in str(error)
    assert error.reason is reason
    assert isinstance(error, ConnectionError)
    kinds = {LostReason.INTEGRITY: IntegrityError, LostReason.TIMEOUT: LostError}
    assert type(error) is kinds.get(reason, ResetError)


def test_each_kind_has_the_exit_code_of_the_contract() -> None:
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
