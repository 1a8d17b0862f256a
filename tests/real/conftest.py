"""Fixtures for tests with real programs: a record of the proxies that each test used, and, shared by all tests of real
clients, one relay with everything that stands before it."""

from collections.abc import Generator, Iterator

import pytest

from tests.real.clients_rig import PROXY_VARIABLES, WAYS, Way, World
from tests.real.servers import STARTED
from tests.support.configurations import CONFIGURATION


@pytest.fixture(autouse=True)
def nothing_started() -> None:
    """Forget earlier programs, so that the record holds only those of this test."""
    STARTED.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a test names the proxies that it started: the summary counts by them."""
    if call.when == "call" and STARTED:
        item.user_properties.append((CONFIGURATION, " before ".join(reversed(STARTED))))
    return (yield)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Relay, exit, nginx and fault proxy."""
    with World(tmp_path_factory.mktemp("nginx")) as running:
        yield running


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Each path to the relay in turn. A test fails if no request has passed nginx meanwhile."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    found = world.ways[request.param]
    before = found.exchanges()
    yield found
    assert found.exchanges() > before, "nothing went through nginx"
