"""Builds `tunnel.pyz`, the command `tunnel` in one file with all libraries: `make pyz`.

The libraries are the wheels that pip chooses for this Python on this platform, so the file runs there and nowhere else.
Their packed form is kept beside the result and used again while the requirements stay the same.
"""

import argparse
import hashlib
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("encryption", "proxy-auth", "terminal")
OURS = {"tunnel": ROOT / "tunnel", "tunnel_client": ROOT / "client" / "tunnel_client"}
# Files that no program imports: a second implementation of zstandard for other Pythons, sources, and tests.
LEFT_OUT = ("zstandard/_cffi*", "*/_testcapi*", "*.pyx", "*.pxd", "*.pxi", "*.c", "*.h", "*.pyi", "*/sboms/*")
OURS_LEFT_OUT = ("tunnel/analysis/*", "*.pyc")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def main() -> int:
    """Build the file and its checksum. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="example: make pyz")
    parser.add_argument("result", type=Path, help="the file to write, such as build/tunnel.pyz")
    result: Path = parser.parse_args().result
    result.parent.mkdir(parents=True, exist_ok=True)
    parts = {"vendor": _vendor(result.parent / "pyz"), "tunnel": _packed(_own_files())}
    _write(result, parts)
    digest = hashlib.sha256(result.read_bytes()).hexdigest()
    result.with_name(f"{result.name}.sha256").write_text(f"{digest}  {result.name}\n")
    print(f"{result}: {result.stat().st_size / 1e6:.1f} MB, for {_python()}; checksum in {result.name}.sha256")
    return 0


def _python() -> str:
    """Return what must be the same where the file runs; bootstrap.py compares it."""
    version = sys.version_info
    return f"{sys.implementation.name}-{version[0]}.{version[1]} {sys.platform} {os.uname().machine}"


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]


def _vendor(kept: Path) -> bytes:
    """Return the packed libraries: those that were kept, or else made from newly fetched wheels."""
    recipe = json.dumps([_requirements(), _python(), LEFT_OUT])
    path = kept / f"vendor-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.tar.xz"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tunnel-") as folder:
            print("fetching the wheels of the libraries, and packing them (a minute)", file=sys.stderr)
            fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*fetch, "--only-binary=:all:", "--dest", folder, *_requirements()], check=True)
            packed = _packed(_wheel_files(sorted(Path(folder).glob("*.whl"))))
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(packed)
        new.replace(path)
    return path.read_bytes()


def _wheel_files(wheels: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    listed = []
    for wheel in wheels:
        listed.append(f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not name.endswith("/") and not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
                    yield name, archive.read(name)
    yield "WHEELS", "".join(listed).encode()


def _own_files() -> Iterator[tuple[str, bytes]]:
    for package, folder in OURS.items():
        for path in sorted(folder.rglob("*")):
            name = f"{package}/{path.relative_to(folder)}"
            if path.is_file() and not any(fnmatch(name, pattern) for pattern in OURS_LEFT_OUT):
                yield name, path.read_bytes()
    yield "LICENSE", (ROOT / "LICENSE").read_bytes()


def _packed(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return a tar.xz that depends only on the files' names and content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            tar.addfile(member, io.BytesIO(data))
    filters = [{"id": lzma.FILTER_X86}] if os.uname().machine == "x86_64" else []
    return lzma.compress(raw.getvalue(), filters=[*filters, {"id": lzma.FILTER_LZMA2, "preset": 6}])


def _write(result: Path, parts: dict[str, bytes]) -> None:
    """Write the file atomically: a zip archive that Python runs."""
    described = {
        name: {"file": f"{name}.tar.xz", "digest": hashlib.sha256(data).hexdigest()} for name, data in parts.items()
    }
    members = {
        "__main__.py": (Path(__file__).parent / "bootstrap.py").read_bytes(),
        "info.json": json.dumps({"python": _python(), "parts": described}, indent=2).encode(),
        **{f"{name}.tar.xz": data for name, data in parts.items()},
    }
    new = result.with_suffix(f".{os.getpid()}")
    with new.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    new.chmod(0o755)
    new.replace(result)


if __name__ == "__main__":
    sys.exit(main())
