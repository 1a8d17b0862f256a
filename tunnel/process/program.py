"""The frame of a command: it stands around the import of the command's modules, and around its last output.

This module imports almost nothing, because Ctrl-C may come while the rest is imported.
"""

import importlib
import os
import sys
from typing import TextIO

from tunnel.ground.exit_codes import INTERNAL, INTERRUPTED, OK, USAGE

__all__ = ["run_program"]

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # in the order of their descriptors


def run_program(name: str, module: str) -> int:
    """Import the module, run its `main`, and return the exit code. `name` is the command's, for messages.

    Ctrl-C ends it without a traceback at any stage. Output that cannot be written is an error.
    """
    _open_closed_streams()
    code = _run(module)
    try:
        sys.stdout.flush()
    except KeyboardInterrupt:  # its reader does not read
        _discard(sys.stdout)
        return INTERRUPTED
    except BrokenPipeError:
        _discard(sys.stdout)
        return code or INTERNAL
    except OSError as error:
        _discard(sys.stdout)
        if code == OK:
            _say(f"{name}: standard output cannot be written: {error.strerror}: write it elsewhere, or make room there")
        return code or USAGE
    return code


def _run(module: str) -> int:
    try:
        return int(importlib.import_module(module).main())
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return INTERNAL
    except SystemExit as ended:  # argparse has printed help or an error
        if not isinstance(ended.code, int):
            raise
        return ended.code


def _open_closed_streams() -> None:
    """Let the null device take the place of each standard stream that was closed when the process started.

    Otherwise the stream is None, and a file or socket that is opened later gets its descriptor: whatever writes to
    standard error by number would write into that.
    """
    for descriptor, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one, unless it is in use
        setattr(sys, name, open(nowhere, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # as long as the process
        if nowhere == descriptor:
            os.set_inheritable(nowhere, True)


def _say(text: str) -> None:
    """Write a line to standard error, unless that cannot be written, either."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Write what is left of the output to nowhere, so that the interpreter's own last flush does not fail, too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
