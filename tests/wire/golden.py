"""The golden vectors: values whose bytes on the wire never change, kept under vectors/.

Run `python -m tests.wire.golden --write` from the root of the repository to write them again; without --write it lists
the files that would change. A changed vector is a changed protocol: old and new endpoints no longer understand each
other.
"""

import enum
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.wire.golden_values import ENVELOPES, LINKS, PACKETS, SECRET
from tunnel.wire import (
    ENVELOPE_BYTES,
    HEADER_SIZE,
    LINK_HEADER_SIZE,
    attachment_id,
    encode_envelope,
    encode_link_header,
    encode_packet,
)

__all__ = ["INDEX", "VECTORS", "expected_files", "main", "read_hex"]

VECTORS = Path(__file__).parent / "vectors"
INDEX = "index.json"
_LINE_BYTES = 32


def plain(value: Any) -> Any:
    """Return a value as JSON shows it: names for structs, numbers for enums, hex for bytes."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return int(value) if isinstance(value, enum.IntEnum) else value


def hex_lines(raw: bytes, head: int) -> str:
    """Return the head in hexadecimal on a line of its own, then the rest."""
    starts = range(head, len(raw), _LINE_BYTES)
    return "".join(f"{part.hex()}\n" for part in [raw[:head], *(raw[at : at + _LINE_BYTES] for at in starts)])


def read_hex(name: str, folder: Path = VECTORS) -> bytes:
    """Return the bytes of a stored vector."""
    return bytes.fromhex((folder / f"{name}.hex").read_text())


def _vectors() -> Iterator[tuple[str, bytes, int, dict[str, Any]]]:
    """Yield the name, the bytes, the size of the head and the index entry of each vector."""
    for name, packet, value, clause in PACKETS:
        entry = {"is": "packet", "clause": clause, "packet": plain(packet), "payload": plain(value)}
        yield name, b"".join(encode_packet(packet)), HEADER_SIZE, entry
    for name, message, mask, clause in ENVELOPES:
        entry = {"is": type(message).__name__, "clause": clause, "mask": mask, "message": plain(message)}
        yield name, b"".join(encode_envelope(message, mask=mask)), ENVELOPE_BYTES, entry
    for name, header, clause in LINKS:
        entry = {"is": "link header", "clause": clause, "header": plain(header)}
        yield name, encode_link_header(header), LINK_HEADER_SIZE, entry
    entry = {"is": "attachment id", "clause": "6.1", "secret": SECRET.hex()}
    yield "attachment_id", attachment_id(SECRET), 16, entry


def expected_files() -> dict[str, str]:
    """Return the content of every file under vectors/, as the code produces it now."""
    files: dict[str, str] = {}
    index: dict[str, Any] = {}
    for name, raw, head, entry in _vectors():
        assert name not in index, f"two vectors are called {name}"
        files[f"{name}.hex"] = hex_lines(raw, head)
        index[name] = entry
    files[INDEX] = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
    return files


def main(arguments: list[str], folder: Path = VECTORS, say: Callable[[str], object] = print) -> int:
    """Run the command; return 1 if vectors differ and were not written, 2 for unknown arguments."""
    if arguments not in ([], ["--write"]):
        say("usage: python -m tests.wire.golden [--write]")
        return 2
    expected = expected_files()
    stored = {path.name: path.read_text() for path in sorted(folder.glob("*")) if path.suffix in (".hex", ".json")}
    changed = [name for name in sorted(stored | expected) if stored.get(name) != expected.get(name)]
    for name in changed:
        say(f"{'written' if arguments else 'differs'}: {name}")
        if not arguments:
            continue
        if name in expected:
            (folder / name).write_text(expected[name])
        else:
            (folder / name).unlink()
    return int(bool(changed) and not arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
