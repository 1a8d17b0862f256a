"""Compiles the hot path with mypyc when a wheel is built with HATCH_BUILD_HOOKS_ENABLE=true.

The compiler needs all packages below one root, and puts its files next to the sources. So the hook compiles a
temporary copy, which has the three packages side by side, and the working tree stays unchanged.

The result depends on the sources, on Python and on mypy, and on nothing else that is installed or set here. So mypy
sees no installed package: to it, everything from there has the type Any, except what `_STUBS` declares. It also reports
no errors of types, because another version of mypy may find others; `make lint` reports them.
"""

import contextlib
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_CONFIG = """[mypy]
no_site_packages = True
ignore_missing_imports = True
check_untyped_defs = True
explicit_package_bases = True
namespace_packages = True
[mypy-tunnel.*,tunnel_client.*,tunnel_servlet.*]
disable_error_code = {}
"""  # not ignore_errors: mypy would leave out parts of its work that mypyc needs
# The compiler must know that structs have a metaclass, so that it leaves these classes as they are: it would make other
# objects of classes whose base it does not know. With the type of a checksum, the checks of packets are faster.
_STUBS = {
    "crc32c.pyi": "def crc32c(data: object, value: int = ...) -> int: ...\n",
    "msgspec/__init__.pyi": """
from typing import Any, dataclass_transform
from msgspec import structs as structs
def field(*, default: Any = ..., default_factory: Any = ..., name: str | None = None) -> Any: ...
@dataclass_transform(field_specifiers=(field,))
class StructMeta(type): ...
class Struct(metaclass=StructMeta): ...
def __getattr__(name: str) -> Any: ...
""",
    "msgspec/structs.pyi": """
from typing import Any, TypeVar
_S = TypeVar("_S")
def replace(struct: _S, /, **changes: Any) -> _S: ...
def __getattr__(name: str) -> Any: ...
""",
}


class CompiledHook(BuildHookInterface[Any]):
    """Adds to the wheel a shared library for each module in `include` and not in `exclude`, and one common library."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":  # an editable install runs the sources
            return
        require_compiler()
        copy = Path(tempfile.mkdtemp(prefix="tunnel-compiled-"))
        try:
            modules = copy_packages(Path(self.root), self.build_config.packages, self.config, copy)
            tell(f"compiling {len(modules)} modules, which takes some five minutes of one processor ...")
            for library in _compile(copy, modules):
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


def tell(text: str) -> None:
    """Say what takes long. pip shows it with -v alone."""
    print(f"tunnel: {text}", file=sys.stderr, flush=True)


def require_compiler() -> None:
    """Raise RuntimeError, with advice, unless C can be compiled here: setuptools notices it after minutes."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    missing = [name for name, found in ((compiler, shutil.which(compiler)), (header, header.exists())) if not found]
    if os.name == "posix" and missing:
        raise RuntimeError(
            f"tunnel cannot be compiled, because {missing[0]} does not exist: install a C compiler and the headers of "
            "Python (on Debian: apt-get install gcc libc6-dev python3-dev), or install without HATCH_BUILD_HOOKS_ENABLE"
        )


def copy_packages(root: Path, packages: Iterable[str], chosen: dict[str, Any], copy: Path) -> list[str]:
    """Copy the packages; return the files to compile, relative to the copy."""
    import pathspec

    included = pathspec.PathSpec.from_lines("gitignore", chosen["include"])
    excluded = pathspec.PathSpec.from_lines("gitignore", chosen["exclude"])
    found = []
    for package in map(Path, packages):
        shutil.copytree(root / package, copy / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        for path in sorted((root / package).rglob("*.py")):
            name = str(path.relative_to(root))
            if included.match_file(name) and not excluded.match_file(name):
                found.append(str(Path(package.name, path.relative_to(root / package))))
    return found


def translate(modules: list[str]) -> list[Any]:
    """Translate the modules to C, in the current directory; return the extensions, for setuptools to compile."""
    from mypy.errorcodes import error_codes
    from mypyc.build import mypycify

    Path("mypy.ini").write_text(_CONFIG.format(", ".join(error_codes)))
    for name, text in _STUBS.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    for name in [name for name in os.environ if name.startswith("MYPY")]:
        del os.environ[name]  # other types, caches and processes: this process does nothing else with mypy
    try:
        return list(mypycify(["--config-file=mypy.ini", *modules], opt_level="2", debug_level="0"))
    except SystemExit as error:  # mypy exits after it has printed its errors
        raise RuntimeError("the packages cannot be compiled: see the messages of mypy above") from error


def _compile(copy: Path, modules: list[str]) -> list[Path]:
    """Compile the modules inside the copy; return the shared libraries, which are next to their modules."""
    from setuptools import Distribution

    with contextlib.chdir(copy):
        distribution = Distribution({"name": "tunnel-transport", "ext_modules": translate(modules)})
        command = distribution.get_command_obj("build_ext")
        command.inplace = True
        command.ensure_finalized()
        command.run()
    print(f"compiled {len(modules)} modules", file=sys.stderr)
    return sorted([*copy.glob("*.so"), *copy.glob("tunnel*/**/*.so")])
