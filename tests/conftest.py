"""For all tests: Hypothesis without deadlines, skips for missing real programs, and the summary for `make test`."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import structlog
from hypothesis import settings

from loadtests.harness.compiled import wants_compiled
from tests.support.configurations import configuration_lines
from tests.support.programs import find_program
from tunnel.core import endpoint

# No deadline: on a busy machine it would fail tests for being slow. Derandomised: the same code gives the same result;
# HYPOTHESIS_PROFILE=explore draws new examples.
settings.register_profile("default", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    check_the_build()
    restore_ignored_signals()
    hide_the_users_login(config)


def hide_the_users_login(config: pytest.Config) -> None:
    """Let no test read, or overwrite, what the person at this machine stored with `tunnel login`, or what commands have
    learned here."""
    for name in ("CONFIG", "CACHE"):
        directory = TemporaryDirectory(prefix=f"tunnel-{name.lower()}-")
        config.add_cleanup(directory.cleanup)
        os.environ[f"XDG_{name}_HOME"] = directory.name


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, on the compiled build, the tests that cannot run there."""
    if wants_compiled(os.environ):
        left_out = [item for item in items if item.get_closest_marker("interpreted")]
        items[:] = [item for item in items if not item.get_closest_marker("interpreted")]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected, half a million objects, out of all later collections of garbage. `in_loop`
    collects after each test, which took 0.25 s of processor time before, with all tests collected."""
    gc.freeze()


def check_the_build() -> None:
    """Fail unless this run tests the build that was asked for: the sources, or the modules compiled from them."""
    found = str(endpoint.__file__)
    if wants_compiled(os.environ) and found.endswith(".py"):
        raise pytest.UsageError(f"this run must test compiled modules, but found {found} (run make test-compiled)")
    if not wants_compiled(os.environ) and not found.endswith(".py"):
        raise pytest.UsageError(f"compiled files hide the sources: remove {found} and all others like it")


def restore_ignored_signals() -> None:
    """Restore signals that our parent process ignored: the programs that tests start would ignore them, too."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def reset_logging() -> Iterator[None]:
    """Reset the log: a command that configured it would leave it writing to a file that its test has closed."""
    yield
    structlog.reset_defaults()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--summary-file", type=Path, help="write the count and the skipped tests there")


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = [program for mark in item.iter_markers("real") for program in mark.args if not find_program(program)]
    if not missing:
        return
    reason = f"not on this machine: {', '.join(missing)} (make system-deps)"
    if os.environ.get("REQUIRE_REAL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    configurations = list(configuration_lines(terminalreporter.stats))
    if configurations:
        terminalreporter.section("real proxies, by configuration (tests/real/config)")
        terminalreporter.write("".join(f"{line}\n" for line in configurations))
    path = terminalreporter.config.getoption("--summary-file")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in summary_lines(terminalreporter.stats)))


def summary_lines(stats: dict[str, list[pytest.TestReport]]) -> Iterator[str]:
    """Yield the count alone on the first line, then a line for each skipped test."""
    failed = len(stats.get("failed", [])) + len(stats.get("error", []))
    yield f"{len(stats.get('passed', []))} passed, {failed} failed"
    for report in stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        yield f"skipped: {report.nodeid}: {reason.removeprefix('Skipped: ')}"
