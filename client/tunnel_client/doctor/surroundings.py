"""The first step of the doctor, which examines the proxy settings of this machine and sends nothing."""

import os
import shutil
import subprocess
from pathlib import Path

from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.login_file import login_for
from tunnel_client.settings import RelaySettings

__all__ = ["examine_proxy"]

_VARIABLES = ("https_proxy", "http_proxy", "all_proxy", "no_proxy")
_SETTINGS_S = 2.0  # time for the desktop to answer


def examine_proxy(report: Report, settings: RelaySettings, proxy: str) -> None:
    """Report which proxy leads to the relay, and which setting names it.

    `proxy` is the proxy in use, without its password, or empty.
    """
    pac = _pac()
    report.add("proxy", Verdict.OK, _of_proxy(settings, proxy), proxy=proxy)
    if pac:
        report.add(
            "proxy script",
            Verdict.NOTE,
            f"a script chooses the proxies of this machine ({pac}), but tunnel does not run such scripts",
            "find out which proxy the script chooses for the relay, and name that proxy with --proxy",
            pac=pac,
        )


def _of_proxy(settings: RelaySettings, proxy: str) -> str:
    """Return the proxy in use and the setting that chose it."""
    named = _variables(settings.url)
    stored = login_for(settings.url, has_token=False).proxy
    if proxy and settings.proxy == "env":
        return f"{proxy}, which the variable {named[0]} names" if named else f"{proxy}, from the environment"
    if proxy:
        return f"{proxy}, which {'`tunnel login` stored' if stored == settings.proxy else '--proxy names'}"
    if settings.proxy is None:
        return f"none: {'`tunnel login` stored this choice' if stored == 'none' else '--proxy none says so'}"
    if named and (bypass := _bypass()):
        return f"none: the variable {bypass} excludes this relay from {named[0]}"
    return "none: no variable of the environment names one"


def _variables(url: str) -> list[str]:
    """Return the names of the variables that name a proxy for this relay, in order of precedence."""
    scheme = url.partition(":")[0]
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    return [name for name in names if os.environ.get(name)]


def _bypass() -> str:
    return next((name for name in ("no_proxy", "NO_PROXY") if os.environ.get(name)), "")


def _pac() -> str:
    """Return the setting, of the environment or the desktop, that names a proxy auto-configuration script, or ""."""
    for name in ("auto_proxy", "AUTO_PROXY", *_VARIABLES, *map(str.upper, _VARIABLES)):
        value = os.environ.get(name, "")
        if (name.lower() == "auto_proxy" and value) or value.endswith(".pac"):
            return f"{name}={value.rpartition('@')[2]}"
    return _of_kde() or _of_gnome()


def _of_kde() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    try:
        lines = (Path(base) / "kioslaverc").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    return found.get("Proxy Config Script", "") if found.get("ProxyType") in ("2", "3") else ""


def _of_gnome() -> str:
    program = shutil.which("gsettings")
    if program is None or "DBUS_SESSION_BUS_ADDRESS" not in os.environ:
        return ""

    def ask(key: str) -> str:
        command = [program, "get", "org.gnome.system.proxy", key]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SETTINGS_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip().strip("'")

    return (ask("autoconfig-url") or "found on the network") if ask("mode") == "auto" else ""
