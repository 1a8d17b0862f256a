"""Programs are found outside of the PATH, end with their ExitStack, and say why they did not start."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtests.harness.processes import NotReadyError
from tests.field.hops.hop import Ground, run_program
from tests.field.hops.nginx import nginx
from tests.real.servers import _takes_connections


def ground(directory: Path) -> Ground:
    return Ground(directory, (1, 2), directory / "ca.pem")


@pytest.mark.real("nginx")
def test_a_program_outside_of_the_path_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's users have no /usr/sbin in their path."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with ExitStack() as stack:
        port = nginx("nginx-plain.conf").start(stack, ground(tmp_path), 1)
        assert _takes_connections(port)
    assert not _takes_connections(port)


def test_a_program_that_ends_says_why() -> None:
    with ExitStack() as stack, pytest.raises(NotReadyError, match="no such setting"):
        run_program(stack, lambda port: ["sh", "-c", "echo no such setting; exit 1"])
