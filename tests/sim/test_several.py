"""Seeds with several relays: connections move, and nothing is lost, doubled or stolen."""

import pytest

from tests.sim.__main__ import main
from tests.sim.several import Several, run_several
from tests.sim.violation import Violation
from tunnel.wire import Connect
from tunnel_servlet.switch import model
from tunnel_servlet.switch.routes import openings


@pytest.mark.parametrize(
    ("seed", "relays"), [(0, 2), (9, 2), (105, 3), (115, 3), (1237, 3), (1504, 3), (2308, 3), (2692, 3)]
)
def test_connections_move_and_lose_nothing(seed: int, relays: int) -> None:
    moves, thefts = run_several(seed, relays)
    assert moves >= 4
    assert thefts > 10


@pytest.mark.parametrize(("seed", "relays"), [(0, 2), (2, 3)])
def test_connections_follow_an_acceptor_that_has_lost_a_relay_for_good(seed: int, relays: int) -> None:
    several = Several(seed, relays, faults=("part",))
    several.run()
    assert any(seat.is_parted for party in several.parties for seat in party.seats)
    assert several.client.moves >= 2


def test_without_a_domain_nothing_moves() -> None:
    several = Several(9, 2, same_users=False, faults=("die", "freeze", "drain", "cut"))
    several.run()
    assert [party.moves for party in several.parties] == [0, 0, 0]


@pytest.mark.interpreted
def test_at_relays_of_before_moves_are_vain_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read only the first id of a resume, which is that of another relay."""

    def first_id(connect: Connect) -> tuple[bytes, ...]:
        return (connect.options.endpoint_id or b"",)

    monkeypatch.setattr(model, "named_ids", first_id)
    monkeypatch.setattr(openings, "named_ids", first_id)
    several = Several(9, 2, faults=("die", "freeze", "drain", "cut"))
    several.run()
    assert [party.moves for party in several.parties] == [0, 0, 0]
    assert any(half.connection.identity.move for half in several.client.halves.values())


@pytest.mark.parametrize("seeds", [["--seeds", "1", "--from", "9"], ["--seed", "9"]], ids=["from", "seed"])
def test_the_command_runs_seeds_with_several_relays(seeds: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--relays", "2", *seeds, "--jobs", "1"]) == 0
    assert "1 seeds with 2 relays, 0 failed: 18 moves" in capsys.readouterr().out


def test_an_option_that_runs_with_several_relays_do_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--relays", "2", "--seed", "9", "--general-way", "--trace", "traces"])
    assert "--relays takes none of: --general-way, --trace" in capsys.readouterr().err


def test_a_failure_names_its_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(several: Several) -> None:
        raise Violation("a byte was lost")

    monkeypatch.setattr(Several, "run", broken)
    assert main(["--relays", "2", "--seeds", "1", "--from", "9"]) == 1
    assert "seed 9 FAILED: a byte was lost" in capsys.readouterr().out
