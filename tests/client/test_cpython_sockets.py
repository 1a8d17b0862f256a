"""The interpreter's own tests of stream sockets pass on sockets of the kernel, and on those that connect by tunnel."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.cpython_sockets import CLASSES, IMPOSSIBLE
from tests.client.sockets_rig import ROOT, relay_thread

PROGRAM = Path(__file__).parent / "cpython_sockets.py"
TIMEOUT_S = 100.0
DOCS = ROOT / "docs" / "SOCKET-API.md"


def need_the_tests() -> None:
    """Debian packs them apart."""
    if importlib.util.find_spec("test") and importlib.util.find_spec("test.test_socket"):
        return
    reason = "this Python has no test.test_socket (on Debian: libpython3.11-testsuite)"
    if os.environ.get("REQUIRE_REAL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.mark.parametrize("kind", ["plain", "tunnel"])
def test_whole_classes_pass(kind: str) -> None:
    need_the_tests()
    with relay_thread() as relay:
        environment = {**relay.environment, "PYTHONWARNINGS": "default"}
        done = subprocess.run(
            [sys.executable, str(PROGRAM), kind],
            capture_output=True,
            text=True,
            env=environment,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    outcome: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    assert list(outcome) == CLASSES
    failed = {
        f"{name}.{test}": text
        for name, tests in outcome.items()
        for test, text in tests.items()
        if text.startswith("failed")
    }
    assert failed == {}, "\n".join(failed.values())
    assert all(len(tests) > 0 for tests in outcome.values())


def test_what_is_impossible_is_documented() -> None:
    text = DOCS.read_text()
    missing = [name for name in [*CLASSES, *IMPOSSIBLE, *IMPOSSIBLE.values()] if name not in text]
    assert missing == []
