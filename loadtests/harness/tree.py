"""The places of the project's packages in a checkout, and the PYTHONPATH with which a child imports them."""

import os
from pathlib import Path

__all__ = ["PACKAGES", "ROOT", "python_path"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tunnel", "servlet/tunnel_servlet", "client/tunnel_client")
"""The three packages of the distribution, relative to the root of the project."""


def python_path(root: Path = ROOT) -> str:
    """Return a PYTHONPATH with the packages of this checkout, its load tests and its tests."""
    return os.pathsep.join(map(str, dict.fromkeys([root, *((root / package).parent for package in PACKAGES)])))
