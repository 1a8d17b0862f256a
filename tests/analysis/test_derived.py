"""Tables of streams that reports store: the numbers are those of a first report, and little is computed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.analysis.engines import differences, duckdb, grown, take_in
from tunnel.analysis.engines.duck import DuckEngine
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept import derived
from tunnel.analysis.kept.derived import Basis, latest
from tunnel.analysis.kept.ledger import Ledger, open_ledger
from tunnel.analysis.kept.upkeep import expire, optimise
from tunnel.analysis.results import analyse as analyse_module
from tunnel.analysis.results.analyse import analyse
from tunnel.analysis.results.result import Analysis
from tunnel.traces import TraceEvent, TraceRecord

BASIS = Basis("code", {"a": (1, 0), "b": (2, 7)}, {"a": (50, [(-1, 5)]), "b": (60, [(-1, 5), (20, 30)])})


@pytest.fixture(autouse=True)
def _stored_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyse_module, "EVENTS_MIN", 0)


def sent(connection: int, sequence: int, t: int, attempt: int = 0) -> TraceRecord:
    peer = connection + 1000
    return TraceRecord(
        time_us=t, node="a", event=TraceEvent.PACKET_SENT, connection=connection, peer=peer, packet_type=4,
        sequence=sequence, attempt=attempt, size_bytes=100, in_flight_bytes=100, writer="a",
    )  # fmt: skip


def received(connection: int, sequence: int, t: int) -> TraceRecord:
    return TraceRecord(
        time_us=t, node="b", event=TraceEvent.PACKET_RECEIVED, connection=connection + 1000, peer=connection,
        packet_type=4, sequence=sequence, size_bytes=100, writer="b",
    )  # fmt: skip


class Growing:
    """A directory that grows, and its reports."""

    def __init__(self, directory: Path, engine: DuckEngine) -> None:
        self.directory = directory
        self.folder = LocalFolder(directory / "_tables")
        self.engine = engine
        self._numbers = {"a": 0, "b": 0}

    def add(self, name: str, *records: TraceRecord) -> None:
        self.directory.mkdir(exist_ok=True)
        lines = []
        for record in records:
            self._numbers[record.writer] += 1
            lines.append(msgspec.structs.replace(record, number=self._numbers[record.writer]))
        (self.directory / f"{name}.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(lines))

    def report(self) -> Analysis:
        """Return a report, after a comparison with one that computes everything."""
        intake = take_in(self.engine, self.directory, self.folder.path)
        result = analyse(self.engine, intake, ledger=Ledger(self.folder))
        first = analyse(self.engine, intake)
        assert differences(msgspec.to_builtins(result), msgspec.to_builtins(first)) == []
        return result

    def computed(self) -> list[int]:
        """Return the streams that the last report computed."""
        found = latest(self.folder)
        assert found is not None
        name, stored = found
        place = f"{name}/streams/{stored.parts - 1}"
        with self.engine.load("last", self.folder, [place]):
            rows = self.engine.rows("select stream from last order by stream")
        return [row["stream"] for row in rows]


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    with duckdb() as engine:
        yield Growing(tmp_path / "traces", engine)


@pytest.mark.parametrize("scenario", ["damaged", "silences", "ends"])
@pytest.mark.parametrize("slice_events", [derived.SLICE_EVENTS, 700])
def test_a_directory_that_grew_has_the_values_of_a_first_report(
    job_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, slice_events: int
) -> None:
    monkeypatch.setattr(derived, "SLICE_EVENTS", slice_events)
    with duckdb() as engine:
        again, first = grown(engine, job_directory / scenario, tmp_path)
    assert differences(msgspec.to_builtins(again), msgspec.to_builtins(first)) == []


def test_only_streams_with_new_events_are_computed(growing: Growing) -> None:
    growing.add("one", sent(1, 1, 10), received(1, 1, 15), sent(2, 1, 20), received(2, 1, 25), sent(2, 2, 30))
    growing.report()
    assert growing.computed() == [1, 2]
    growing.add("two", received(2, 2, 40), sent(3, 1, 50), received(3, 1, 55))
    assert growing.report().totals["packets"] == 4
    assert growing.computed() == [2, 3]
    growing.report()
    assert growing.computed() == []


def test_a_packet_that_was_on_its_way_is_judged_again_when_the_trace_goes_on(growing: Growing) -> None:
    packets = [
        sent(1, 1, 10),
        received(1, 1, 15),
        sent(1, 3, 21),
        received(1, 3, 26),
        sent(1, 2, 24),
        sent(1, 2, 25, 1),
    ]
    growing.add("one", *packets)
    assert growing.report().totals["open_packets"] == 1
    growing.add("two", sent(9, 1, 1_000), received(9, 1, 1_005))
    result = growing.report()
    assert growing.computed() == [1, 9]
    assert (result.totals["open_packets"], result.totals["lost"]) == (0, 2)


def test_merged_folders_are_known_and_expired_days_are_not(growing: Growing) -> None:
    for number in (1, 2):
        growing.add(f"f{number}", sent(number, 1, 10 * number), received(number, 1, 10 * number + 5))
        growing.report()
    with open_ledger(growing.folder) as ledger:
        assert optimise(growing.engine, ledger).after == 1
    growing.report()
    assert growing.computed() == []
    growing.add("f3", sent(3, 1, 50), received(3, 1, 55))
    with open_ledger(growing.folder) as ledger:
        expire(ledger, "2999-01-01")
    assert growing.report().totals["streams"] == 1
    assert growing.computed() == [3]


def test_stored_tables_are_removed_when_there_are_newer_ones_and_nobody_reads(growing: Growing) -> None:
    growing.add("one", sent(1, 1, 10), received(1, 1, 15))
    growing.directory.joinpath("_tables").mkdir()
    with growing.folder.reading():
        growing.report()
        growing.report()
        with open_ledger(growing.folder):
            assert len(growing.folder.names("derived")) == 2
    killed = "99999999999999999999-0123abcd"  # its process died before it was complete
    growing.folder.make(f"derived/{killed}/streams")
    (growing.folder.path / "derived" / "mine").mkdir()
    with open_ledger(growing.folder):
        names = growing.folder.names("derived")
    assert len(names) == 2
    assert "mine" in names
    assert killed not in names


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"spans": {**BASIS.spans, "a": (51, [(-1, 5)])}}, True),
        ({"writers": {**BASIS.writers, "c": (3, 9)}, "spans": {**BASIS.spans, "c": (1, [])}}, True),
        ({"code": "other"}, False),
        ({"writers": {**BASIS.writers, "b": (2, 8)}}, False),
        ({"writers": {**BASIS.writers, "b": (3, 7)}}, False),
        ({"writers": {"a": (1, 0)}}, False),
        ({"spans": {**BASIS.spans, "a": (49, [(-1, 5)])}}, False),
        ({"spans": {**BASIS.spans, "a": (50, [(-1, 4)])}}, False),
        ({"spans": {**BASIS.spans, "b": (60, [(-1, 5)])}}, False),
    ],
)
def test_rows_are_taken_over_while_clocks_and_times_without_records_are_the_same(
    change: dict[str, object], is_same: bool
) -> None:
    assert msgspec.structs.replace(BASIS, **change).continues(BASIS) is is_same


def test_slices_hold_every_stream_once() -> None:
    conditions = derived._slices(3 * derived.SLICE_EVENTS)
    assert conditions == [
        "stream >= 0 and stream < 1431655765",
        "stream >= 1431655765 and stream < 2863311530",
        "stream >= 2863311530",
    ]
    assert derived._slices(0) == ["stream >= 0"]
