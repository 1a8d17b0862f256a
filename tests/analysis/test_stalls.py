"""Silences whose causes are all known."""

import pytest

from tests.analysis.job import Found
from tests.analysis.stalls import SILENCES, Silence, stream_of
from tunnel.analysis.words import STALLS

pytestmark = pytest.mark.timeout(1600)


@pytest.mark.parametrize("silence", SILENCES, ids=lambda silence: silence.name)
def test_a_silence_has_its_expected_cause(found: Found, silence: Silence) -> None:
    causes = [why for stream, why in found.stalls if stream == stream_of(silence)]
    assert causes == ([silence.cause] if silence.cause else [])


def test_every_cause_has_a_silence_and_a_text() -> None:
    assert {silence.cause for silence in SILENCES} - {""} == set(STALLS)
