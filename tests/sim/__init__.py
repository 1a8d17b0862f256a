"""The deterministic simulator: real endpoints, lanes and switch on a virtual clock; the HTTP path is a model.

Start reading at `world.py`. `python -m tests.sim --help` explains how to run it, `python -m tests.sim.demo` shows it.
"""

__all__: list[str] = []
