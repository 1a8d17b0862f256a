"""A pytest plugin: collects once, learns which test reaches which function, then runs each mutant in a forked child.

The child runs the tests that reach the mutated function (at most 400), those of the module's own file first, and stops
at the first that fails. Collecting again for every mutant, as other runners do, takes ten times as long as the tests.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import resource
import signal
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, process_time
from typing import Any, TypeGuard

import pytest
from mutmut.mutation import trampoline

__all__ = ["CLEANING", "Outcome", "pytest_addoption", "pytest_configure"]

GIB = 1 << 30
MEMORY_BYTES = 4 * GIB  # address space of a child: a mutant that appends without end stops early
# Fixtures that all tests use, and that only clean up after a test of a command: a test without other fixtures is called
# without them.
CLEANING = frozenset({"reset_logging"})
WALL_S = 5  # for a test that neither ends nor computes: it waits for a thread or an event that the mutant has lost


class Outcome:
    """The result for one mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    MISTYPED = "refused by the type checker"
    SURVIVED = "survived"
    UNREACHED = "unreached"


@dataclass
class Job:
    """One mutant, and the numbers of its tests."""

    module: str
    mutant: str
    tests: list[int] = field(default_factory=list)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants-plan", type=Path, help="JSON: module, own tests and mutants")
    parser.addoption("--mutants-results", type=Path, help="a line of JSON for each mutant")
    parser.addoption("--mutants-children", type=int, default=1)
    parser.addoption("--mutants-tests", type=int, default=400, help="at most so many for a mutant, cheapest first")
    parser.addoption("--mutants-cpu", type=int, default=1, help="seconds a test; and ten times what it takes")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Runner(config), "mutants-runner")


class Runner:
    """Replaces pytest's loop over the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.failed: list[str] = []
        self._plan = json.loads(config.getoption("--mutants-plan").read_text())
        self._results = config.getoption("--mutants-results")
        self._children_max: int = config.getoption("--mutants-children")
        self._tests_max: int = config.getoption("--mutants-tests")
        self._cpu_s: int = config.getoption("--mutants-cpu")
        self._hits: dict[str, dict[int, None]] = {}
        self._costs_s: list[float] = []
        self._durations_s: list[float] = []
        self._children: dict[int, Job] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Learn, then run every mutant of the plan."""
        if session.testsfailed:
            raise session.Failed("the tests cannot be collected")
        self._learn(session)
        if self.failed:
            raise session.Failed(f"these tests fail without a mutant: {', '.join(self.failed)}")
        jobs = [job for entry in self._plan for job in self._jobs(session, entry)]
        warnings.simplefilter("error")  # the setting of the project's tests
        gc.freeze()  # a collection in a child would copy every page
        gc.disable()
        with self._results.open("w") as results:
            for number, job in enumerate(jobs, 1):
                if not job.tests:
                    self._note(results, job, Outcome.UNREACHED)
                    continue
                if len(self._children) >= self._children_max:
                    self._reap(results)
                self._start(session, job)
                if sys.stderr.isatty():
                    print(f"\r{number}/{len(jobs)} {job.module}", end="\033[K", file=sys.stderr)
            while self._children:
                self._reap(results)
        return True

    def _learn(self, session: pytest.Session) -> None:
        """Run every test once; record which functions it reaches and how long it takes."""
        reached: dict[str, None] = {}

        def note(name: str, caller: str | None = None) -> None:
            reached[name] = None

        trampoline.record_trampoline_hit = note  # type: ignore[attr-defined]
        os.environ["MUTANT_UNDER_TEST"] = "stats"
        items = session.items
        for number, item in enumerate(items):
            reached.clear()
            started, began = process_time(), monotonic()
            self._test(item, items[number + 1 :])
            self._costs_s.append(process_time() - started)
            self._durations_s.append(monotonic() - began)
            for name in reached:
                self._hits.setdefault(name, {})[number] = None
        del os.environ["MUTANT_UNDER_TEST"]

    def _jobs(self, session: pytest.Session, entry: dict[str, Any]) -> list[Job]:
        own, module = entry["own_tests"], entry["module"]
        jobs = []
        for mutant in entry["mutants"]:
            function = mutant.rpartition("__mutmut_")[0]
            reaching = self._hits.get(f"{module}.{function}", {})
            tests = sorted(
                reaching,
                key=lambda number: (not session.items[number].nodeid.startswith(own), self._costs_s[number]),
            )[: self._tests_max]
            jobs.append(Job(module, mutant, tests))
        return jobs

    def _start(self, session: pytest.Session, job: Job) -> None:
        pid = os.fork()
        if pid:
            self._children[pid] = job
            return
        code = 3
        try:
            _confine()
            code = self._run(session, job)
        finally:
            os._exit(code)

    def _run(self, session: pytest.Session, job: Job) -> int:
        """In the child: return 1 when a test fails."""
        active = f"{job.module}.{job.mutant}"
        trampoline.get_mutant_under_test = lambda: active
        items = [session.items[number] for number in job.tests]
        for place, number in enumerate(job.tests):
            limit_s = int(process_time() + self._cpu_s + 10 * self._costs_s[number]) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
            signal.setitimer(signal.ITIMER_REAL, WALL_S + 5 * self._durations_s[number])
            self._test(items[place], items[place + 1 :])
            if self.failed:
                return 1
        return 0

    def _test(self, item: pytest.Item, later: list[pytest.Item]) -> None:
        """Run one test. A test without fixtures is just called, which takes a tenth of pytest's time.

        pytest tears down what the next test that it runs does not share, so it must not hear of those in between.
        """
        if not _is_plain(item):
            following = next((one for one in later if not _is_plain(one)), None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            return
        try:
            item.obj(**(item.callspec.params if hasattr(item, "callspec") else {}))
        except pytest.skip.Exception:
            pass
        except BaseException as error:
            self.failed.append(f"{item.nodeid} ({error!r})")

    def _reap(self, results: Any) -> None:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        outcome = {
            0: Outcome.SURVIVED,
            1: Outcome.KILLED,
            -signal.SIGXCPU: Outcome.TIMEOUT,
            -signal.SIGKILL: Outcome.TIMEOUT,
            -signal.SIGALRM: Outcome.TIMEOUT,
        }.get(code, Outcome.CRASHED)
        self._note(results, self._children.pop(pid), outcome)

    def _note(self, results: Any, job: Job, outcome: str) -> None:
        line = {"module": job.module, "mutant": job.mutant, "outcome": outcome, "tests": len(job.tests)}
        results.write(json.dumps(line) + "\n")
        results.flush()


def _is_plain(item: pytest.Item) -> TypeGuard[pytest.Function]:
    marks = {mark.name for mark in item.own_markers}
    if type(item) is not pytest.Function or item.cls is not None or marks - {"parametrize", "hypothesis"}:
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return set(item.fixturenames) - CLEANING <= set(parameters) and not inspect.iscoroutinefunction(item.obj)


def _confine() -> None:
    """In the child: discard the output, and limit the memory, for a mutant that never ends."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
