"""The queries that Spark has run: what they read, how often they move rows, and what they collect."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
from pyspark.sql import SparkSession

__all__ = ["Query", "Step", "executed", "queries_of", "steps_of"]

_LINE = re.compile(r"^((?:[\s:|]|\+-|:-)*)(?:\* )?([A-Za-z].*?)\s*\((\d+)\)$")
_CACHE = "InMemoryRelation"
_NAMING = "CreateViewCommand"
_BOUNDED = re.compile(r"Aggregate|TakeOrdered|Limit")
_NUMBER = re.compile(r"#\d+L?")
_PYTHON = re.compile(r"Python|InPandas|InArrow|ExistingRDD")


class Query(msgspec.Struct):
    """A query: its description, and its plan as Spark prints it."""

    description: str
    plan: str


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of a plan."""

    name: str
    above: tuple[str, ...]
    """The names of the operators between it and the result."""
    cache: str
    """The table in whose cache its rows end; empty if they do not."""

    @property
    def is_bounded(self) -> bool:
        """Whether an operator above this one bounds the number of rows that this one contributes to the result."""
        return any(_BOUNDED.search(name) for name in self.above)

    @property
    def is_scan(self) -> bool:
        """Whether it reads files."""
        return self.name.startswith("Scan parquet")

    @property
    def is_shuffle(self) -> bool:
        """Whether it moves all of its rows between tasks."""
        return self.name == "Exchange"

    @property
    def needs_python(self) -> bool:
        """Whether executors start Python for it."""
        return _PYTHON.search(self.name) is not None


def queries_of(session: SparkSession) -> list[Query]:
    """Return all queries that the session has run. To name a query runs nothing."""
    java = session._jsparkSession
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    found = java.sharedState().statusStore().executionsList()
    ran = (found.apply(number) for number in range(found.size()))
    queries = [Query(query.description(), query.physicalPlanDescription()) for query in ran]
    return [query for query in queries if _NAMING not in query.plan]


def steps_of(plan: str) -> list[Step]:
    """Return the operators of a plan, as its tree shows them. A cached table's are shown where it first occurs."""
    steps: list[Step] = []
    path: list[tuple[int, str, str | None]] = []  # depth, name, cache; None below a later occurrence
    shown = set[str]()
    for line in plan.split("\n\n", 1)[0].splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        depth, name, number = len(found[1]), found[2], found[3]
        while path and path[-1][0] >= depth:
            path.pop()
        cache = path[-1][2] if path else ""
        if cache is not None:
            steps.append(Step(name, tuple(above for _, above, _ in path), cache))
        if cache is not None and name == _CACHE:
            table = _arguments(plan, number)
            cache = None if table in shown else table
            shown.add(table)
        path.append((depth, name, cache))
    return steps


def _arguments(plan: str, number: str) -> str:
    """Return the columns of a cached table, which tell it from all others. Each use of a table numbers them anew."""
    found = re.search(rf"^\({number}\) {_CACHE}\nArguments: (.*)$", plan, re.MULTILINE)
    assert found is not None, plan
    return _NUMBER.sub("", found[1])


def executed(queries: list[Query]) -> list[Step]:
    """Return the operators that were run: those of a cached table once, however many queries read it."""
    steps, cached = [], dict[str, list[Step]]()
    for query in queries:
        of_query: dict[str, list[Step]] = {}
        for step in steps_of(query.plan):
            of_query.setdefault(step.cache, []).append(step)
        steps += of_query.pop("", [])
        cached = of_query | cached
    return [*steps, *(step for table in cached.values() for step in table)]
