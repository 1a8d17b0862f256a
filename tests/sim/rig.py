"""The trace of a simulated run in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "trace_of"]

ROOT = Path(__file__).parent.parent.parent


def trace_of(seed: int, hash_seed: str, directory: Path, *options: str) -> bytes:
    command = [sys.executable, "-m", "tests.sim", "--seed", str(seed), "--trace", str(directory), *options]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return (directory / f"seed-{seed}.jsonl").read_bytes()
