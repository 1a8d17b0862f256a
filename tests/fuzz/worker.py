"""One target in a process of its own: `python -m tests.fuzz.worker TARGET ENGINE SECONDS SEED CORPUS CRASHES`.

The kernel ends it with SIGXCPU when it hangs: processor time counts, since other work may keep it waiting for minutes.

The engine "atheris" fuzzes by coverage and reports on standard error, as libFuzzer does. The engine "random" runs
seeded random inputs and writes one line of JSON. Either leaves a crashing input in the folder CRASHES and exits with
CRASHED.
"""

import hashlib
import json
import resource
import secrets
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.target import Target

__all__ = ["CRASHED", "TOO_SLOW", "fuzz_by_chance", "fuzz_by_coverage", "main"]

CRASHED = 77  # libFuzzer's exit code for a crash
TOO_SLOW = 70  # libFuzzer's exit code for an input that takes too long
_UNIT_TIMEOUT_S = 60  # on the clock, for one input; at nice 10 beside two busy processes that is 6 s of work
_GRACE_S = 120  # of processor time, for starting and for the last input
_MEMORY_MB = 1024  # of the process


def fuzz_by_coverage(name: str, seconds: int, seed: int, corpus: Path, crashes: Path) -> None:
    """Fuzz until libFuzzer ends the process: this does not return. The modules to instrument must not be imported yet.
    Seed 0: libFuzzer draws a seed."""
    import atheris

    # The invariants are a tool of these tests: they need no coverage.
    with atheris.instrument_imports(
        include=["tunnel", "tunnel_servlet", "tunnel_client"], exclude=["tunnel_servlet.switch.invariants"]
    ):
        from tests.fuzz.registry import TARGETS
    target = TARGETS[name]
    arguments = [
        sys.argv[0],
        f"-max_total_time={max(1, seconds)}",  # 0 would mean forever
        f"-max_len={target.size_max}",
        f"-seed={seed}",
        "-print_final_stats=1",
        "-reload=0",
        f"-timeout={_UNIT_TIMEOUT_S}",
        f"-rss_limit_mb={_MEMORY_MB}",
        f"-artifact_prefix={crashes}/",
        str(corpus),
    ]
    atheris.Setup(arguments, target.run)
    atheris.Fuzz()


def fuzz_by_chance(target: Target, seconds: int, seed: int, crashes: Path) -> int:
    """Run committed inputs, then rounds of random ones, until one crashes or the time is up; return the exit code.

    Seed 0: a seed is drawn.
    """
    from tests.fuzz.corpus import committed, random_inputs

    deadline = time.monotonic() + seconds
    executions, rounds = 0, 0
    seed = seed or secrets.randbits(32)
    started = time.monotonic()
    inputs = iter(committed(target).values())
    code = 0
    while not code and time.monotonic() < deadline:
        for data in inputs:
            executions += 1
            try:
                target.run(data)
            except Exception:
                traceback.print_exc()
                (crashes / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
                code = CRASHED
            if code or time.monotonic() >= deadline:
                break
        rounds += 1
        inputs = random_inputs(target, seed + rounds, 1000)
    rate = executions / max(0.001, time.monotonic() - started)
    print(json.dumps({"executions": executions, "per_second": round(rate), "rounds": rounds, "seed": seed}))
    return code


def main(arguments: list[str]) -> int:
    """Run the command."""
    name, engine, seconds, seed, corpus, crashes = arguments
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + _GRACE_S, resource.RLIM_INFINITY))
    if engine == "atheris":
        fuzz_by_coverage(name, int(seconds), int(seed), Path(corpus), Path(crashes))
    from tests.fuzz.registry import TARGETS

    return fuzz_by_chance(TARGETS[name], int(seconds), int(seed), Path(crashes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
