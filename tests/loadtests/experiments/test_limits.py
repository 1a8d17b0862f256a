"""The experiment with limits of requests, and its limiter, run shortly."""

import json

import pytest

from loadtests.experiments.limits import main
from loadtests.harness.limiter import Limit, Limiter


def test_it_counts_what_a_server_gets_that_always_answers_429(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--limits", "429", "--carriers", "poll", "--seconds", "8", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["refused"] == sum(figures["requests"]) > 1
    assert figures["refused"] <= 12  # in the first minute; without a back-off, some 20 in this time
    assert (figures["echoes"], figures["first_echo_s"]) == (0, None)


def test_without_a_limit_echoes_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--limits", "none", "--carriers", "link", "--seconds", "8"]) == 0
    cells = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert cells[1:2] + cells[4:5] == ["link", "0"]
    assert int(cells[6]) > 0


def test_an_unknown_limit_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--limits", "429,tariff"])
    assert "there is no limit tariff" in capsys.readouterr().err


def test_a_ban_ends_when_no_request_has_come_for_its_time() -> None:
    limiter = Limiter(Limit("", 5.0, status=429, ban_s=10.0), 0)
    assert [limiter._refuses(at_s) for at_s in (4.0, 5.0, 14.0, 23.0, 33.0, 34.0)] == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_the_queue_keeps_the_place_of_each_request() -> None:
    limiter = Limiter(Limit("", interval_s=1.0), 0)
    assert [limiter._queue_s(at_s) for at_s in (0.0, 0.0, 0.0, 10.0)] == [1.0, 2.0, 3.0, 0.0]


def test_connections_beyond_the_limit_count_too() -> None:
    limiter = Limiter(Limit("", connections=2), 0)
    assert [limiter._connects(at_s) for at_s in (0.0, 1.0, 2.0, 10.5, 21.0)] == [True, True, False, False, True]
