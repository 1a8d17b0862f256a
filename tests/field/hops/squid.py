"""Squid as a forward proxy, as one that decrypts TLS, and as an accelerator."""

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from loadtests.harness.tree import ROOT
from tests.field.hops.hop import Ground, Hop, fill, run_program, write_config
from tests.real.servers import as_nobody, open_directory

__all__ = ["BUMPING", "squid", "squid_accelerator", "squid_bump"]

BUMPING = ROOT / "build" / "field" / "squid-openssl"
"""Debian's squid has no ssl_bump, and its package squid-openssl cannot be installed beside squid: `make field-deps`
unpacks squid-openssl here."""


def _hand_over(directory: Path) -> None:
    if os.geteuid() == 0:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, 65534, 65534)


def _start(stack: ExitStack, template: str, program: str, **values: object) -> int:
    directory = stack.enter_context(open_directory())

    def make_command(port: int) -> list[str]:
        names = {"port": port, "directory": directory, **values}
        text = fill("squid-common.conf", **names) + fill(template, **names)
        file = write_config(directory / "squid.conf", text)
        _hand_over(directory)
        return as_nobody([program, "-N", "-d", "1", "-n", f"field{port}", "-f", str(file)])

    return run_program(stack, make_command).port


def squid(template: str) -> Hop:
    """Squid as a forward proxy."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        return _start(stack, template, "squid", upstream=upstream)

    return Hop("squid", start, is_proxy=True)


def squid_accelerator(template: str) -> Hop:
    """Squid as a reverse proxy."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        return _start(stack, template, "squid", upstream=upstream)

    return Hop("squid", start)


def _authority(directory: Path) -> Path:
    return directory / "bump.pem"


def squid_bump(template: str) -> Hop:
    """Squid that decrypts TLS with certificates of its own authority."""

    def start(stack: ExitStack, ground: Ground, upstream: int) -> int:
        authority = make_authority(_authority(ground.directory))
        # Squid does not run as root, and so may be unable to enter the directory of this checkout: it runs from a copy.
        place = stack.enter_context(open_directory())
        program, helper = (
            str(shutil.copy2(BUMPING / "usr" / path, place))
            for path in ("sbin/squid", "lib/squid/security_file_certgen")
        )
        store = place / "certificates"
        subprocess.run([helper, "-c", "-s", store, "-M", "4MB"], check=True, capture_output=True)
        _hand_over(store)
        return _start(stack, template, program, authority=authority, helper=helper, store=store, ca=ground.ca)

    return Hop("squid-openssl", start, is_proxy=True, ca=_authority)


def make_authority(file: Path) -> Path:
    """Write a new authority, certificate and key, that all users may read."""
    subject = ["-subj", "/CN=Field inspection", "-addext", "basicConstraints=critical,CA:TRUE"]
    options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(file), "-out", f"{file}.crt"]
    subprocess.run(["openssl", "req", "-x509", *options, *subject], check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    file.chmod(0o644)
    return file
