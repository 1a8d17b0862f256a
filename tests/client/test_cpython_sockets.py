"""The interpreter's own tests of stream sockets pass with the kernel's sockets and, except those that are named as
impossible, with tunnel sockets."""

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.client.cpython_sockets import CLASSES, IMPOSSIBLE
from tests.client.sockets_rig import ROOT, relay_thread

PROGRAM = Path(__file__).parent / "cpython_sockets.py"
TIMEOUT_S = 100.0
PROCESSES = 4
DOCS = ROOT / "docs" / "measurements" / "sockets.md"


def need_the_tests() -> None:
    """Skip, or with REQUIRE_REAL=1 fail, where the interpreter's tests are missing: Debian packages them separately."""
    if importlib.util.find_spec("test") and importlib.util.find_spec("test.test_socket"):
        return
    reason = "this Python has no test.test_socket (on Debian: libpython3.11-testsuite)"
    if os.environ.get("REQUIRE_REAL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.mark.parametrize("kind", ["plain", "tunnel", "encrypted"])
def test_whole_classes_pass(kind: str) -> None:
    need_the_tests()
    outcome: dict[str, dict[str, str]] = {}
    with relay_thread(encrypted=kind == "encrypted") as relay, ExitStack() as stack:
        environment = {**relay.environment, "PYTHONWARNINGS": "default"}
        # These tests sleep most of the time, so they run in parallel.
        groups = [CLASSES[number::PROCESSES] for number in range(PROCESSES)]
        way = "plain" if kind == "plain" else "tunnel"
        commands = [[sys.executable, str(PROGRAM), way, *group] for group in groups]
        running = [
            stack.enter_context(subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment))
            for command in commands
        ]
        try:
            for process in running:
                output, errors = process.communicate(timeout=TIMEOUT_S)
                assert process.returncode == 0, errors
                outcome.update(json.loads(output.splitlines()[-1]))
        finally:
            for process in running:
                process.kill()
    assert sorted(outcome) == sorted(CLASSES)
    failed = {
        f"{name}.{test}": text
        for name, tests in outcome.items()
        for test, text in tests.items()
        if text.startswith("failed")
    }
    assert failed == {}, "\n".join(failed.values())
    assert all(tests for tests in outcome.values())


def test_impossible_tests_are_documented() -> None:
    text = DOCS.read_text()
    missing = [name for name in [*CLASSES, *IMPOSSIBLE, *IMPOSSIBLE.values()] if name not in text]
    assert missing == []
