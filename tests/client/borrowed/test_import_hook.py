"""The hook for imports: a module that is imported before, during or after `watch` is passed on once."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tunnel_client.borrowed.import_hook import Late

NAME = "watched_by_a_test"
WAIT_S = 30  # only a hanging test takes so long


class Gate:
    """Holds the import of the module between two of its lines."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.divisor = 1  # 0: the import fails

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The gate of a module that can be imported, and is forgotten after the test."""
    (tmp_path / f"{NAME}.py").write_text("import sys\ngate = sys.gate\ngate.pass_through()\nvalue = 1 / gate.divisor\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = Gate()
    monkeypatch.setattr(sys, "gate", found, raising=False)
    yield found
    sys.modules.pop(NAME, None)


def import_it() -> None:
    with suppress(ZeroDivisionError):
        importlib.import_module(NAME)


@pytest.mark.parametrize("is_imported", [True, False])
def test_a_module_is_passed_on_now_or_when_it_is_imported(gate: Gate, *, is_imported: bool) -> None:
    gate.opened.set()
    late = Late()
    found: list[Any] = []
    if is_imported:
        import_it()
    late.watch(NAME, lambda module: found.append(module.value))
    import_it()
    import_it()
    assert found == [1]
    assert late not in sys.meta_path


def watch_during_an_import(late: Late, gate: Gate, call: Callable[[Any], None]) -> None:
    """Call `watch` in one thread while another one imports the module; return when both have ended."""
    begun = threading.Event()

    def watch() -> None:
        begun.set()
        late.watch(NAME, call)

    threads = [threading.Thread(target=each, daemon=True) for each in (import_it, watch)]
    threads[0].start()
    assert gate.reached.wait(WAIT_S)
    threads[1].start()
    assert begun.wait(WAIT_S)
    gate.opened.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_module_that_another_thread_is_importing_is_passed_on_when_that_has_ended(gate: Gate) -> None:
    """Otherwise its functions would bypass the tunnel, and no error would say so."""
    late = Late()
    found: list[int] = []
    watch_during_an_import(late, gate, lambda module: found.append(module.value))
    assert found == [1]
    assert late not in sys.meta_path


def test_a_module_whose_import_fails_in_another_thread_is_not_passed_on(gate: Gate) -> None:
    gate.divisor = 0
    late = Late()
    found: list[Any] = []
    watch_during_an_import(late, gate, found.append)
    assert found == []
    gate.divisor = 1
    import_it()
    assert found == [sys.modules[NAME]]
    late.stop()


def test_a_module_that_watches_itself_while_it_is_imported_goes_on(gate: Gate) -> None:
    """`watch` does not wait for the end of this import, which would wait for `watch`."""
    late = Late()
    found: list[Any] = []
    gate.opened.set()
    gate.reached.set = lambda: late.watch(NAME, found.append)  # type: ignore[method-assign]
    import_it()
    assert sys.modules[NAME].value == 1
    assert found == []
    late.stop()
    assert late not in sys.meta_path


def test_a_program_that_only_looks_for_a_module_does_not_end_the_watch(gate: Gate) -> None:
    gate.opened.set()
    late = Late()
    found: list[Any] = []
    late.watch(NAME, found.append)
    assert importlib.util.find_spec(NAME) is not None
    assert importlib.util.find_spec(NAME) is not None
    assert found == []
    import_it()
    assert found == [sys.modules[NAME]]
    assert late not in sys.meta_path
