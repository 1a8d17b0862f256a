"""The committed inputs: seeds (corpus/) and all inputs that once broke a promise (found/), one text file per target.

A line has a name and the bytes in hexadecimal, or begins with "#". `python -m tests.fuzz.corpus --write` makes the
seeds again from the golden vectors and from the scripts of the targets; without --write it lists the differences.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.fuzz.draw import WIRE_NUMBERS
from tests.fuzz.registry import TARGETS
from tests.fuzz.target import Target

__all__ = ["FOUND", "SEEDS", "committed", "expected_text", "main", "mutated", "random_inputs", "read"]

SEEDS = Path(__file__).parent / "corpus"
FOUND = Path(__file__).parent / "found"


def read(target: Target, folder: Path) -> dict[str, bytes]:
    """Return the inputs for the target in this folder, by name."""
    path = folder / f"{target.name}.txt"
    inputs: dict[str, bytes] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        if line and not line.startswith("#"):
            name, _, raw = line.partition(" ")
            assert name not in inputs, f"{path}: {name} twice"
            inputs[name] = bytes.fromhex(raw)
    return inputs


def committed(target: Target) -> dict[str, bytes]:
    """Return the seeds and the found inputs of the target."""
    return {**read(target, SEEDS), **read(target, FOUND)}


def expected_text(target: Target) -> str:
    """Return the text that the target's file of seeds should have."""
    return "".join(f"{name} {raw.hex()}".rstrip() + "\n" for name, raw in target.seeds())


def random_inputs(target: Target, seed: int, count: int) -> Iterator[bytes]:
    """Yield the same inputs for the same seed. One in four is random, the others are mutations of committed ones."""
    random = Random(f"{target.name} {seed}")
    known = list(committed(target).values()) or [b""]
    for _ in range(count):
        if random.random() < 0.25:
            yield random.randbytes(random.randrange(min(600, target.size_max)))
        else:
            yield mutated(random.choice(known), random)[: target.size_max]


def mutated(data: bytes, random: Random) -> bytes:
    """Return the data with a few bytes changed, inserted, repeated, removed, or set to a number likely to do harm."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at = random.randrange(len(changed) + 1)
        kind = random.randrange(6)
        if kind == 0:
            changed[at : at + 1] = random.randbytes(1)
        elif kind == 1:
            changed[at:at] = random.randbytes(random.randrange(1, 40))
        elif kind == 2:
            del changed[at : at + random.randrange(1, 20)]
        elif kind == 3:
            start = random.randrange(len(changed) + 1)
            changed[at:at] = changed[start : start + random.randrange(1, 60)]
        elif kind == 4:
            changed[at : at + 4] = random.choice(WIRE_NUMBERS).to_bytes(4, "big")
        elif at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


def main(arguments: list[str], folder: Path = SEEDS, say: Callable[[str], object] = print) -> int:
    """Run the command; return 1 if seeds differ and --write is missing, 2 for unknown arguments."""
    if arguments not in ([], ["--write"]):
        say("usage: python -m tests.fuzz.corpus [--write]")
        return 2
    changed = []
    for target in TARGETS.values():
        path = folder / f"{target.name}.txt"
        text = expected_text(target)
        if not path.exists() or path.read_text() != text:
            changed.append(target.name)
            if arguments:
                path.write_text(text)
    for name in changed:
        say(f"{'written' if arguments else 'differs'}: {name}")
    return int(bool(changed) and not arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
