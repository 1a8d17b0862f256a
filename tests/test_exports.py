"""The packages have every name that they export, and importing tunnel imports none of those in NOT_BROUGHT."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import is_within, module_name, project_files

ROOT = Path(__file__).parent.parent
FILES = [
    path
    for path in project_files(ROOT)
    if path.parts[0] in ("tunnel", "servlet", "client", "loadtests") and path.name != "__main__.py"
]
# Locust replaces threads and sockets with gevent's, for good: its modules are imported in processes of their own.
ALONE = re.compile(r"^(from|import) (locust|gevent|loadtests\.stress\.(users|session))\b", re.MULTILINE)
IN_ITS_OWN = [module_name(path) for path in FILES if ALONE.search((ROOT / path).read_text())]
MODULES = [name for name in map(module_name, FILES) if name not in IN_ITS_OWN]

# Modules that an extra installs: a module that needs one of these is skipped where it is absent.
OPTIONAL = ("duckdb", "locust", "nats", "prometheus_client", "pyspark", "zstandard")
# Modules that `import tunnel` must not import, installed or not.
NOT_BROUGHT = ("aiohttp", "duckdb", "locust", "nats", "prometheus_client", "pyspark", "client", "servlet", "loadtests")


@pytest.mark.parametrize("package", ["tunnel", "tunnel_servlet", "tunnel_client", "loadtests"])
def test_every_exported_name_exists(package: str) -> None:
    names = [name for name in MODULES if is_within(name, package)]
    absent, missing, twice = set(), [], []
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] not in OPTIONAL:
                raise
            absent.add(error.name)
            continue
        missing += [f"{name}.{exported}" for exported in module.__all__ if not hasattr(module, exported)]
        twice += [name] if len(set(module.__all__)) < len(module.__all__) else []
    assert names
    assert (missing, twice) == ([], [])
    if absent:
        pytest.skip(f"not installed: {', '.join(sorted(absent))}")


def test_modules_that_need_their_own_process_export_their_names() -> None:
    assert IN_ITS_OWN == ["loadtests.stress.locustfile", "loadtests.stress.session", "loadtests.stress.users"]
    pytest.importorskip("gevent")
    code = """
import importlib, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    assert all(hasattr(module, exported) for exported in module.__all__), name
"""
    command = [sys.executable, "-c", code, *IN_ITS_OWN]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_importing_tunnel_imports_nothing_optional() -> None:
    # Blocked modules stand for modules that are not installed.
    code = f"""
import sys
for name in {NOT_BROUGHT!r}:
    sys.modules[name] = None
import tunnel
print(sorted(name for name in {NOT_BROUGHT!r} if sys.modules[name] is not None), tunnel.__file__)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.stderr == ""
    assert result.stdout.startswith("[] ")
