"""Every Python under `tunnel run` loads this module at its start, unless it runs with -I, -E or -S.

The module borrows the tunnel (`borrower.py`), then runs the next sitecustomize.

This folder is first in PYTHONPATH. The Python need not have tunnel installed: files are loaded by their paths.
"""

import importlib.util
import os
import sys
from typing import Any

__all__ = ["borrow", "continue_with_next", "load"]

HERE = os.path.dirname(os.path.abspath(__file__))
PARENT = os.path.dirname(HERE)


def load(name: str) -> Any:
    """Load a module of the parent folder, under a name that no other module has."""
    spec = importlib.util.spec_from_file_location("_tunnel_" + name, os.path.join(PARENT, name + ".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def borrow(path: str, patterns: str) -> None:
    """Reach matching hosts through the tunnel that is lent at this Unix socket, until this process ends."""
    hosts, pair, borrowing = load("hosts"), load("pair"), load("borrower")
    engine_module, late = load("engine"), load("import_hook").Late()
    borrowed = borrowing.Borrowed(path, pair)
    engine = engine_module.Engine(hosts.Placeholders(), hosts.is_literal, bool, pair, borrowing.errno_of, late)
    engine.add(engine_module.Route(hosts.Hosts(patterns.split(",")), borrowed))
    for module, client in load("c_clients").C_CLIENTS.items():
        late.watch(module, lambda _, client=client: borrowed.has_loaded(client))
    try:
        borrowed.hello()
    except OSError as error:
        text = str(error).encode("unicode_escape").decode()  # a terminal does not obey it
        print("tunnel:", text, file=sys.stderr)  # connects will fail rather than bypass the tunnel


def continue_with_next() -> None:
    """Import the next sitecustomize, as if this folder were not in PYTHONPATH."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


if __name__ == "sitecustomize":
    if "TUNNEL_RUN_SOCKET" in os.environ:
        borrow(os.environ["TUNNEL_RUN_SOCKET"], os.environ.get("TUNNEL_RUN_HOSTS", "*"))
    continue_with_next()
