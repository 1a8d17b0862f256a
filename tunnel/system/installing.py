"""The command that installs a missing package, for errors that name it."""

import shlex
import sys

__all__ = ["install_command"]


def install_command(package: str) -> str:
    """Return the command that installs this package for the Python that runs.

    The package is one of another project. An extra of ours could be named only in a folder with our sources, because
    tunnel is on no package index.
    """
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", package])
