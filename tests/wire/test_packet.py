"""Clauses 1.3 to 1.5: sizes and types."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given

from tests.support.imports import project_files
from tests.wire.strategies import packets, u8, u32
from tunnel.wire.encoding import whole_packet
from tunnel.wire.packet import (
    FAREWELLS,
    IN_STREAM,
    PACKET_TRAITS,
    SEQUENCED,
    TO_SOURCE,
    UNANSWERED,
    Copies,
    Packet,
    PacketType,
    is_sequenced,
    types_kept,
)

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("tunnel", "servlet", "client")


@given(packets)
def test_size_is_the_size_on_the_wire(packet: Packet) -> None:  # 1.3
    assert packet.size == len(whole_packet(packet))


def test_six_types_are_sequenced() -> None:  # 1.5
    names = {kind.name for kind in PacketType if kind in SEQUENCED}
    assert names == {"CONNECT", "ACCEPTED", "DATA", "CLOSE", "OPTION", "FINISH"}


@given(u8, u32, u32)
def test_option_is_sequenced_only_on_a_connection(kind: int, source: int, destination: int) -> None:  # 1.5, 2.7
    of_the_attachment = kind == PacketType.OPTION and source == destination == 0
    assert is_sequenced(kind, source, destination) == (kind in SEQUENCED and not of_the_attachment)


def test_option_of_the_attachment_is_not_sequenced() -> None:  # 2.7
    assert not is_sequenced(PacketType.OPTION, 0, 0)
    assert is_sequenced(PacketType.OPTION, 1, 0)
    assert is_sequenced(PacketType.OPTION, 0, 1)
    assert is_sequenced(PacketType.DATA, 0, 0)


# --- the table of types


def names(kinds: frozenset[int]) -> set[str]:
    return {PacketType(kind).name for kind in kinds}


def test_each_type_has_a_row() -> None:
    assert list(PACKET_TRAITS) == list(PacketType)


def test_1_5_the_protocol_names_the_same_types() -> None:
    clause = (ROOT / "docs/PROTOCOL.md").read_text().split("**1.5**")[1].split("Number 8")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([^|]+) \|", clause, re.MULTILINE)
    assert [(int(number), name) for number, name, _ in rows] == [(kind.value, kind.name) for kind in PacketType]
    assert {name for _, name, sequenced in rows if "yes" in sequenced} == names(SEQUENCED)


def test_9_2_these_keep_their_place_in_the_stream() -> None:
    assert names(IN_STREAM) == {"DATA", "CLOSE", "FINISH", "OPTION"}
    assert IN_STREAM < SEQUENCED


def test_9_2_of_known_control_packets_one_is_kept_with_two_exceptions() -> None:
    assert names(types_kept(Copies.SEVERAL)) == {"ACK"}
    assert names(types_kept(Copies.FIRST)) == {"ABORT"}
    assert types_kept(Copies.EACH) == frozenset()
    assert types_kept(*Copies) == frozenset(map(int, PacketType)) - IN_STREAM


def test_3_9_and_5_7_these_are_not_answered_with_abort() -> None:
    assert names(UNANSWERED) == {"ABORT", "REJECTED", "DROPPED", "EDGE", "LEAVE", "NOOP", "PONG", "SHUTDOWN"}
    assert names(FAREWELLS) == {"ABORT", "SHUTDOWN"}
    assert names(TO_SOURCE) == {"ACCEPTED", "REJECTED"}


def uses_as_a_list(path: Path) -> Iterator[int]:
    """Yield the lines in which a module uses PacketType itself, other than for one member or as a type."""
    tree = ast.parse(path.read_text())
    fine: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript):
            fine |= {id(child) for child in ast.walk(node)}
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            fine |= {id(child) for child in ast.walk(node.annotation)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "PacketType" and id(node) not in fine:
            yield node.lineno


def test_no_other_module_goes_through_all_types() -> None:
    files = [path for path in project_files(ROOT) if path.parts[0] in PRODUCT]
    assert len(files) > 300
    found = [f"{path}:{line}" for path in files for line in uses_as_a_list(ROOT / path)]
    assert found == []


def test_going_through_all_types_is_found(tmp_path: Path) -> None:
    for number, line in enumerate(("frozenset(map(int, PacketType))", "[kind for kind in PacketType]")):
        path = tmp_path / f"{number}.py"
        path.write_text(f"FOUND = {line}\nOTHER = PacketType.DATA\n")
        assert list(uses_as_a_list(path)) == [1]
