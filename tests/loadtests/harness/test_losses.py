"""Loss models: the share lost and the length of bursts are as configured, and a seed reproduces the losses."""

from itertools import groupby

import pytest

from loadtests.harness.losses import Bernoulli, GilbertElliott, LossModel, LossyFilter, parse_model
from tunnel.traces.record import TraceEvent, TraceFault, TraceRecord
from tunnel.wire import Frame, PacketType

FRAME = Frame(version=1, type=PacketType.DATA, attempt=2, source=7, destination=8, sequence=9, data=b"x" * 24)
DRAWS = 40_000


def losses(model: LossModel, seed: int = 1) -> list[bool]:
    lossy = LossyFilter(model, seed)
    return [not lossy(FRAME) for _ in range(DRAWS)]


@pytest.mark.parametrize(
    "model", [Bernoulli(0.05), Bernoulli(0.5), GilbertElliott(0.01, 0.25), GilbertElliott(0.02, 0.1, 0.01, 0.5)]
)
def test_the_share_of_losses_is_as_configured(model: LossModel) -> None:
    assert sum(losses(model)) / DRAWS == pytest.approx(model.share, rel=0.15)


def test_bursts_are_as_long_as_configured() -> None:
    bursts = [len(list(group)) for lost, group in groupby(losses(GilbertElliott(0.01, 0.25))) if lost]
    assert sum(bursts) / len(bursts) == pytest.approx(4, rel=0.15)


def test_the_same_seed_loses_the_same_packets() -> None:
    assert losses(Bernoulli(0.1), 5) == losses(Bernoulli(0.1), 5) != losses(Bernoulli(0.1), 6)


def test_probability_0_loses_no_packet_and_1_loses_all() -> None:
    assert not any(losses(Bernoulli(0)))
    assert all(losses(Bernoulli(1)))
    assert GilbertElliott(0, 1).share == 0


def test_each_lost_packet_is_a_record() -> None:
    records: list[TraceRecord] = []
    lossy = LossyFilter(Bernoulli(1), 1, records.append, now_us=lambda: 42)
    assert not lossy(FRAME)
    lossy.model = Bernoulli(0)
    assert lossy(FRAME)
    assert (lossy.passed, lossy.lost, len(records)) == (1, 1, 1)
    assert records[0] == TraceRecord(
        time_us=42,
        node="lossyrelay",
        event=TraceEvent.FAULT_INJECTED,
        cause=TraceFault.PACKET_DROPPED,
        connection=7,
        peer=8,
        packet_type=PacketType.DATA,
        sequence=9,
        attempt=2,
        size_bytes=24,
    )
    assert len(records) == lossy.lost


def test_models_are_parsed() -> None:
    assert parse_model("0.05") == Bernoulli(0.05)
    assert parse_model("gilbert:0.01:0.25") == GilbertElliott(0.01, 0.25)
    assert parse_model("gilbert:0.01:0.25:0.001:0.9") == GilbertElliott(0.01, 0.25, 0.001, 0.9)


@pytest.mark.parametrize("text", ["", "x", "1.1", "-0.1", "gilbert", "gilbert:0.1", "gilbert:0.1:0", "gilbert:2:1"])
def test_text_that_is_not_a_model_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="is not a loss: write a probability"):
        parse_model(text)
