"""An intake whose process is killed: the next one completes it, and the lock is free."""

import subprocess
import sys
from pathlib import Path

from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept.ledger import open_ledger

STEPS_MIN = 20


def test_an_intake_that_is_killed_at_any_step_is_completed_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.analysis.killing", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= STEPS_MIN


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\nfrom tunnel.analysis.engines.folders import LocalFolder\n"
        "from tunnel.analysis.kept.ledger import open_ledger\n"
        "with open_ledger(LocalFolder(pathlib.Path(sys.argv[1]))): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -9
    assert (tmp_path / "lock").read_text()
    with open_ledger(LocalFolder(tmp_path)):
        pass
