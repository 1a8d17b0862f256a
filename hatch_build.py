"""Compiles the hot path with mypyc when a wheel is built with HATCH_BUILD_HOOKS_ENABLE=true.

The compiler needs all packages below one root, and puts its files next to the sources. So the hook compiles a
temporary copy, which has the three packages side by side, and the working tree stays unchanged.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# mypy configuration that ignores the types of packages in extras, since a build environment does not have them.
_ABSENT = "[mypy]\nstrict = True\nexplicit_package_bases = True\nnamespace_packages = True\n" + "".join(
    f"[mypy-{name}.*]\nignore_missing_imports = True\n" for name in ("cryptography", "spnego", "nats", "pyspark")
)


class CompiledHook(BuildHookInterface[Any]):
    """Adds to the wheel a shared library for each module in `include` and not in `exclude`, and one common library."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":  # an editable install runs the sources
            return
        copy = Path(tempfile.mkdtemp(prefix="tunnel-compiled-"))
        try:
            for library in _compile(copy, self._modules(copy)):
                build_data["force_include"][str(library)] = str(library.relative_to(copy))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            raise
        self._copy = copy

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version == "standard":
            shutil.rmtree(self._copy, ignore_errors=True)

    def _modules(self, copy: Path) -> list[str]:
        """Copy the packages; return the files to compile, relative to the copy."""
        import pathspec

        included = pathspec.PathSpec.from_lines("gitignore", self.config["include"])
        excluded = pathspec.PathSpec.from_lines("gitignore", self.config["exclude"])
        root, chosen = Path(self.root), []
        for package in map(Path, self.build_config.packages):
            shutil.copytree(root / package, copy / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            for path in sorted((root / package).rglob("*.py")):
                name = str(path.relative_to(root))
                if included.match_file(name) and not excluded.match_file(name):
                    chosen.append(str(Path(package.name, path.relative_to(root / package))))
        return chosen


def _compile(copy: Path, modules: list[str]) -> list[Path]:
    """Compile the modules inside the copy; return the shared libraries, which are next to their modules."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    before = Path.cwd()
    os.chdir(copy)
    try:
        Path("mypy.ini").write_text(_ABSENT)
        extensions = mypycify(["--config-file=mypy.ini", *modules], opt_level="2", debug_level="0")
        distribution = Distribution({"name": "tunnel-transport", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.inplace = True
        command.ensure_finalized()
        command.run()
    except SystemExit as error:  # mypy exits after it has printed its errors
        raise RuntimeError("the packages cannot be compiled: see the messages of mypy above") from error
    finally:
        os.chdir(before)
    found = sorted([*copy.glob("*.so"), *copy.glob("tunnel*/**/*.so")])
    print(f"compiled {len(modules)} modules", file=sys.stderr)
    return found
