"""Translates the hot path to C with this Python's mypy, without compiling it: translate.py SOURCE NEW_FOLDER.

It prints the number of modules, and a digest of the C files. It imports nothing but what a build environment has.
"""

import hashlib
import importlib.util
import os
import sys
import tomllib
from pathlib import Path

__all__ = ["main"]


def main(source: Path, copy: Path) -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", source / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    wheel = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copy.mkdir()
    modules = hook.copy_packages(source, wheel["packages"], wheel["hooks"]["custom"], copy)
    os.chdir(copy)
    hook.translate(modules)
    digest = hashlib.sha256()
    for path in sorted(Path("build").rglob("*.[ch]")):
        digest.update(path.read_bytes())
    print(f"{len(modules)} modules: {digest.hexdigest()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
