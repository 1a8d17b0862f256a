"""`python -m tests.mutants`: change the source in small ways, and list the changes that no test notices.

The exit code is 1 when a change is neither noticed nor defended in tests/mutants/defended.txt.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.mutants.areas import SOURCES, Module, choose, pytest_arguments
from tests.mutants.plugin import Outcome
from tests.mutants.tree import mutate
from tests.mutants.types import refused
from tests.mutants.verdicts import NOTICED, changes, judge, read_defended, render

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
DEFENDED = Path(__file__).with_name("defended.txt")
BUILD = ROOT / "build" / "mutants"
# The options leave out plugins that only cost time here. A mutant has its own time limit, which replaces that of the
# tests.
PYTEST = (
    "-q --no-header --no-summary --assert=plain --capture=no -o timeout=0 -p tests.mutants.plugin -p no:cacheprovider"
    " -p no:xdist -p no:pytest_cov -p no:hypothesispytest -o faulthandler_timeout=0"
).split()


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every mutant is noticed or defended, 1 if one is not or a defence is wrong, 2 if the run failed."""
    options = _parse(arguments)
    try:
        modules = choose(ROOT, options.modules.replace(",", " ").split())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    options.build.mkdir(parents=True, exist_ok=True)
    with (options.build / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run works in {options.build}: wait for it, or give --build", file=sys.stderr)
            return 2
        return _work(options, modules)


def _work(options: argparse.Namespace, modules: list[Module]) -> int:
    defended = read_defended(DEFENDED.read_text())
    tree = options.build / "tree"
    made = mutate(ROOT, tree, modules)
    known = Known(options.build / "outcomes.json")
    plan: list[dict[str, Any]] = []
    for module, mutants in made.items():
        outcomes = known.outcomes(module) if options.again else {}
        words = changes((tree / module.path).read_text())
        wanted = [
            name
            for name in mutants
            if outcomes.get(name) not in NOTICED
            and not (name in outcomes and f"{module.name} {words[name]}" in defended)
        ]
        plan.append({"module": module.dotted, "own_tests": module.own_tests, "mutants": wanted})
        known.forget(module, wanted)
    if any(entry["mutants"] for entry in plan) and not _run(options, plan, modules, known):
        return 2
    known.refuse(refused(tree, modules))
    rows = [
        judge(module, (tree / module.path).read_text(), known.of(module, mutants), defended)
        for module, mutants in made.items()
    ]
    print("\n".join(render(rows)))
    return 1 if any(row.has_faults for row in rows) else 0


class Known:
    """The outcomes of all runs, by module, as long as its source stays the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._modules: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}

    def outcomes(self, module: Module) -> dict[str, str]:
        """The outcomes that are known for the module's present source."""
        return self._modules.get(self._key(module), {})

    def of(self, module: Module, mutants: list[str]) -> dict[str, str]:
        found = self.outcomes(module)
        return {name: found[name] for name in mutants}

    def forget(self, module: Module, mutants: list[str]) -> None:
        found = self._modules.setdefault(self._key(module), {})
        for name in mutants:
            found.pop(name, None)

    def learn(self, modules: list[Module], lines: str) -> None:
        """Record results in the plugin's format."""
        by_name = {module.dotted: module for module in modules}
        for line in lines.splitlines():
            found = json.loads(line)
            self._modules[self._key(by_name[found["module"]])][found["mutant"]] = found["outcome"]
        self._path.write_text(json.dumps(self._modules))

    def refuse(self, names: dict[Module, set[str]]) -> None:
        """Count these mutants as noticed by the type checker, if no test noticed them."""
        for module, refused_names in names.items():
            found = self._modules[self._key(module)]
            for name in refused_names & found.keys():
                if found[name] not in NOTICED:
                    found[name] = Outcome.MISTYPED
        self._path.write_text(json.dumps(self._modules))

    def _key(self, module: Module) -> str:
        return f"{module.name} {hashlib.sha256((ROOT / module.path).read_bytes()).hexdigest()[:16]}"


def _run(options: argparse.Namespace, plan: list[dict[str, Any]], modules: list[Module], known: Known) -> bool:
    build = options.build
    plan_path, results_path = build / "plan.json", build / "results.jsonl"
    plan_path.write_text(json.dumps(plan))
    results_path.write_text("")
    files = [f"--mutants-plan={plan_path}", f"--mutants-results={results_path}"]
    limits = [f"--mutants-children={options.children}", f"--mutants-tests={options.tests}"]
    command = [sys.executable, "-m", "pytest", *PYTEST, *files, *limits, *pytest_arguments(modules)]
    code = subprocess.run(command, cwd=build / "tree", check=False).returncode
    known.learn(modules, results_path.read_text())
    return code in (0, 5)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        epilog="for example: python -m tests.mutants --modules core.send,exchange --children 2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--modules", default="", metavar="M,M", help=f"areas ({', '.join(SOURCES)}) or modules")
    parser.add_argument("--children", type=int, default=1, metavar="N", help="mutants under test at once (default 1)")
    parser.add_argument(
        "--tests", type=int, default=400, metavar="N", help="tests for one mutant, cheapest first (default 400)"
    )
    parser.add_argument("--again", action="store_true", help="leave out changes that were noticed or defended before")
    parser.add_argument("--build", type=Path, default=BUILD, metavar="DIR", help="where to work (build/mutants)")
    options = parser.parse_args(arguments)
    options.build = options.build.resolve()  # pytest runs in another directory
    return options


if __name__ == "__main__":
    sys.exit(main())
