"""For the tests of real clients: one relay with all that stands before it, for all of them."""

from collections.abc import Iterator

import pytest

from tests.real.clients_rig import PROXY_VARIABLES, WAYS, Way, World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Relay, exit, nginx and fault proxy."""
    with World(tmp_path_factory.mktemp("nginx")) as running:
        yield running


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Each way to the relay in turn. A test that went past it fails."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    found = world.ways[request.param]
    before = found.exchanges()
    yield found
    assert found.exchanges() > before, "nothing went through nginx"
