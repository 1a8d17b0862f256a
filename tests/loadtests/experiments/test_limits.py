"""The experiment with limits of requests, and its limiter, run shortly."""

import json

import pytest

from loadtests.experiments.limits import main

pytestmark = pytest.mark.timeout(600)
SECONDS = (8, 55)  # on a slow machine, little happens in 8 s


def test_it_counts_what_a_server_gets_that_always_answers_429(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in SECONDS:
        assert main(["--limits", "429", "--carriers", "poll", "--seconds", str(seconds), "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        if figures["refused"] > 1:
            break
    assert figures["refused"] == sum(figures["requests"]) > 1
    assert figures["refused"] <= 12  # in the first minute; without a back-off, some 20 in this time
    assert (figures["echoes"], figures["first_echo_s"]) == (0, None)


def test_without_a_limit_echoes_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in SECONDS:
        assert main(["--limits", "none", "--carriers", "link", "--seconds", str(seconds)]) == 0
        cells = capsys.readouterr().out.splitlines()[-1].split(" | ")
        if int(cells[6]) > 0:
            break
    assert cells[1:2] + cells[4:5] == ["link", "0"]
    assert int(cells[6]) > 0


def test_an_unknown_limit_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--limits", "429,tariff"])
    assert "there is no limit tariff" in capsys.readouterr().err
