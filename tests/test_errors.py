"""Every refusal and every loss becomes an OSError that states its cause; every refusal also says what to do next."""

import ast
import copy
import errno
import pickle
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunnel import errors
from tunnel.core import Lost, Refused
from tunnel.errors import (
    DeniedError,
    IntegrityError,
    LostError,
    LostReason,
    NotAuthenticatedError,
    PeerKeyError,
    ProxyPasswordError,
    RefusedError,
    RejectReason,
    ResetError,
    SocketError,
    TunnelError,
    UnreachableError,
    lost_error,
    refused_error,
)
from tunnel.messages import errors as message_errors
from tunnel_client.sockets.connector import ResolveError, TargetTimeoutError

# Each error that is an OSError, the errno it has, and the built-in error that OSError makes of this errno.
NUMBERS: dict[Callable[[str], OSError], tuple[int, type[OSError]]] = {
    UnreachableError: (errno.ENETUNREACH, OSError),
    NotAuthenticatedError: (errno.EACCES, PermissionError),
    ProxyPasswordError: (errno.EACCES, PermissionError),
    PeerKeyError: (errno.ECONNABORTED, ConnectionAbortedError),
    DeniedError: (errno.EACCES, PermissionError),
    RefusedError: (errno.ECONNREFUSED, ConnectionRefusedError),
    LostError: (errno.ETIMEDOUT, TimeoutError),
    ResetError: (errno.ECONNRESET, ConnectionResetError),
    IntegrityError: (errno.ECONNABORTED, ConnectionAbortedError),
    ResolveError: (socket.EAI_NONAME, OSError),
    TargetTimeoutError: (errno.ETIMEDOUT, TimeoutError),
    message_errors.MalformedFrameError: (errno.ECONNABORTED, ConnectionAbortedError),
    message_errors.ChannelClosedError: (errno.ECONNRESET, ConnectionResetError),
}


@pytest.mark.parametrize("reason", RejectReason)
def test_a_refusal_says_what_to_do(reason: RejectReason) -> None:
    error = refused_error(Refused(1, reason, "as the relay says"), "db:5432")
    assert re.match("db:5432: as the relay says[:;] [a-z]", str(error))
    assert re.fullmatch(r"db:5432: [^:;]+[:;] [^:;]+", str(refused_error(Refused(1, reason, ""), "db:5432")))
    assert error.reason is reason
    assert isinstance(error, DeniedError if reason is RejectReason.DENIED else RefusedError)


@pytest.mark.parametrize("reason", [RejectReason.DENIED, RejectReason.NO_SUCH_SERVICE])
def test_the_refusal_of_a_target_without_a_port_asks_about_a_port(reason: RejectReason) -> None:
    doubt = "without a port, db is the name of a service: did you mean db:PORT?"
    assert str(refused_error(Refused(1, reason, ""), "db")).endswith(f"; {doubt}")
    assert "did you mean" not in str(refused_error(Refused(1, reason, ""), "db:5432"))
    assert "did you mean" not in str(refused_error(Refused(1, RejectReason.BUSY, ""), "db"))


@pytest.mark.parametrize(
    ("reason", "text", "target", "said"),
    [
        (
            RejectReason.REFUSED,
            "127.0.0.1:80 refused the connection",
            "127.0.0.1:80",
            "127.0.0.1:80 refused the connection: check that it listens there",
        ),
        (RejectReason.REFUSED, "", "a:80", "a:80: the target refused the connection: check that it listens there"),
        (
            RejectReason.NAME_NOT_RESOLVED,
            "a has no address",
            "a:80",
            "a:80: a has no address: check it as seen from the exit",
        ),
        (
            RejectReason.NO_SUCH_SERVICE,
            "no endpoint listens under this name",
            "a:b",
            "a:b: no endpoint listens under this name: start the service, or check its name",
        ),
        (
            RejectReason.DENIED,
            "no rule allows a:80; this line would allow it: a",
            "a:80",
            "no rule allows a:80; this line would allow it: a; ask the operator of the relay for a rule",
        ),
        (
            RejectReason.DENIED,
            "'a@b' is neither an address nor a name",  # no rule could allow it
            "a@b:80",
            "a@b:80: 'a@b' is neither an address nor a name; check how the host is written",
        ),
        (
            RejectReason.BUSY,
            "no room for a:8080",
            "a:80",
            "a:80: no room for a:8080: try again later, or raise the limits",
        ),
        (RejectReason.BUSY, "expired", "x:1", "x:1: expired: try again later, or raise the limits"),
    ],
)
def test_a_refusal_says_nothing_twice(reason: RejectReason, text: str, target: str, said: str) -> None:
    """Neither the target, nor what happened, if the text that came with the refusal names it."""
    assert str(refused_error(Refused(1, reason, text), target)) == said


def test_refusals_have_the_errno_of_a_socket_error() -> None:
    numbers = {reason: RefusedError("", reason).errno for reason in RejectReason}
    assert numbers[RejectReason.REFUSED] == errno.ECONNREFUSED
    assert numbers[RejectReason.UNREACHABLE] == errno.EHOSTUNREACH
    assert numbers[RejectReason.NO_EXIT] == errno.EHOSTUNREACH
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
        "full": "db:5432: full: try again later, or raise the limits",
        "": "db:5432: there is no room for another connection: try again later, or raise the limits",
    }
    for said, text in refused.items():
        assert str(refused_error(Refused(1, RejectReason.BUSY, said), "db:5432")) == text
    gone, reset = LostReason.GONE, LostReason.RESET
    assert str(lost_error(Lost(1, gone, "replaced"), "db:5432")) == f"db:5432: {gone.value}; replaced; connect again"
    assert str(lost_error(Lost(1, reset, ""), "db:5432")) == f"db:5432: {reset.value}"


def descendants(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for each in kind.__subclasses__():
        yield each
        yield from descendants(each)


def attributes(error: BaseException) -> Any:
    return type(error), str(error), repr(error), error.args, vars(error)


@pytest.mark.parametrize("make", NUMBERS)
def test_callers_that_only_know_os_errors_get_a_number_and_the_text(make: Callable[[str], OSError]) -> None:
    error = make("db:5432: check it")
    number, kind = NUMBERS[make]
    assert (error.errno, error.strerror, str(error)) == (number, "db:5432: check it", "db:5432: check it")
    assert type(OSError(error.errno, error.strerror)) is kind
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert attributes(same) == attributes(error)
        assert (same.errno, same.strerror) == (error.errno, error.strerror)


def test_the_list_of_errors_with_a_number_is_complete() -> None:
    found = {kind for kind in descendants(TunnelError) if issubclass(kind, OSError)}
    ours = {kind for kind in found if kind.__module__.startswith("tunnel")}
    assert ours - {SocketError} == set(NUMBERS)
    assert all(issubclass(kind, SocketError) for kind in ours)


def test_a_copy_keeps_what_the_caller_has_added() -> None:
    error = RefusedError("db:5432: check it", RejectReason.UNREACHABLE)
    error.add_note("while the report was made")
    same = pickle.loads(pickle.dumps(error))
    assert (same.errno, same.reason) == (errno.EHOSTUNREACH, RejectReason.UNREACHABLE)
    assert same.__notes__ == ["while the report was made"]


@pytest.mark.parametrize(
    "error",
    [
        LostError("db:5432: gone", LostReason.GONE),
        message_errors.RemoteCallError(7, "no such topic"),
        message_errors.OffsetOutOfRangeError(3, 5, 9),
    ],
)
def test_an_error_with_further_arguments_reaches_another_process(error: TunnelError) -> None:
    same = pickle.loads(pickle.dumps(error))
    assert attributes(same) == attributes(error)


def test_an_error_that_an_object_keeps_is_raised_without_the_frames_of_earlier_raises() -> None:
    """Each raise adds the frames that the error passes, and frames keep what their functions hold: a user who meets a
    kept error again and again would fill the memory."""
    found = [
        f"{path}:{node.lineno}"
        for root in ("tunnel", "servlet", "client")
        for path in sorted(Path(root).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Attribute) and node.exc.attr.islower()
    ]
    assert found == [], "write: raise self.error.with_traceback(None)"
