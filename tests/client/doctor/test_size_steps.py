"""The sizes that the doctor tries."""

from __future__ import annotations

import msgspec
import pytest

from tests.client.doctor.prober import LIMITS, FakeProber, finding, trials
from tests.support.hurried_loop import hurried
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.size_steps import examine_sizes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("accepted", "tried", "which"),
    [(MIB // 2, MIB // 2, "relay accepts"), (MIB, MIB, "relay accepts"), (2**32 - 1, MIB, "tunnel sends")],
)
def test_no_body_is_larger_than_those_of_the_tunnel_whatever_a_relay_says(
    accepted: int, tried: int, which: str
) -> None:
    report, prober = Report(""), FakeProber()
    prober.attached = msgspec.structs.replace(LIMITS, body_bytes_max=accepted)
    hurried(examine_sizes(report, trials(prober)))
    assert max(asked.size for asked in prober.asked) == tried
    line = finding(report, "body limit")
    assert line.verdict is Verdict.OK
    assert line.text.endswith(f"the largest that the {which}")
