"""The experiment with a path that limits each TCP connection, run shortly."""

import json

import pytest

from loadtests.experiments.shaped import main


def test_it_measures_a_flow_and_the_echo_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--setups", "link:2", "--ways", "up", "--seconds", "6", "--cut", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["carrier"], figures["links"], figures["way"]) == ("link", 2, "up")
    assert figures["kib_s"] > 0
    assert figures["connections"] >= 3  # two links and that of the first request
