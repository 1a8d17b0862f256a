"""The modules that are mutated, and the tests that must notice the mutants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.imports import is_within, module_name

__all__ = ["SOURCES", "Module", "choose", "pytest_arguments"]

SOURCES = {
    "core": Path("tunnel/core"),
    "exchange": Path("tunnel/exchange"),
    "switch": Path("servlet/tunnel_servlet/switch"),
    "access": Path("servlet/tunnel_servlet/access"),
    "audit": Path("servlet/tunnel_servlet/audit"),
    "web": Path("servlet/tunnel_servlet/web"),
    "client": Path("client/tunnel_client"),
    "carriers": Path("tunnel/carriers"),
    "traces": Path("tunnel/traces"),
    "analysis": Path("tunnel/analysis"),
    "messages": Path("tunnel/messages"),
    "turns": Path("tunnel/turns"),
    "face": Path("tunnel"),
}
NOT_CHANGED = ("__init__", "invariants")
"""Modules that are left as they are: `__init__` only exports names, and only tests call `invariants`."""

# The tests that mirror a source. Tests that draw many examples or count steps are left out: every mutant would take
# their time, and mutants that only they notice break nothing that a test promises by its name.
TESTS = {
    "core": ("tests/core", "tests/scripted/test_scripts.py"),
    "exchange": ("tests/exchange", "tests/servlet/switch"),
    "switch": ("tests/servlet/switch",),
    "turns": ("tests/turns",),
}
# Most modules of the other areas wait for sockets, so that a mutant would take seconds. Only these modules are mutated,
# each with its own tests.
SINGLE: dict[str, dict[str, tuple[str, ...]]] = {
    "access": {
        name: (f"tests/servlet/access/test_{name}.py",) for name in ("certificates", "instants", "proxies", "sso")
    },
    "audit": {name: (f"tests/servlet/audit/test_{name}.py",) for name in ("changes", "event", "sums")},
    "web": {"live.denials": ("tests/servlet/web/live/test_denials.py",)},
    "client": {
        "places": ("tests/client/test_places.py",),
        "settings": ("tests/client/test_settings.py",),
        "login_file": ("tests/client/test_login_file.py", "tests/client/test_settings.py"),
        "forward.traffic": ("tests/client/forward/test_traffic.py",),
        "proxy.requests": ("tests/client/proxy/test_http_connect.py", "tests/client/proxy/test_socks.py"),
        "doctor.findings": ("tests/client/doctor/test_findings.py",),
    },
    "carriers": {
        "halves.link_protocol": ("tests/carriers/halves/test_link_protocol.py",),
        "dialing.proxies": ("tests/carriers/dialing/test_proxies.py",),
        "dialing.challenges": ("tests/carriers/dialing/test_challenges.py",),
    },
    "traces": {
        "record": ("tests/traces/test_record.py",),
        "jsonl": ("tests/traces/test_jsonl.py",),
        "exchanges": ("tests/traces/test_exchanges.py",),
        "folder": ("tests/traces/test_folder.py",),
        "watch": ("tests/traces/test_watch.py",),
        "salvage": ("tests/traces/test_salvage.py",),
        "writer": ("tests/traces/test_writer.py", "tests/traces/test_writer_steps.py"),
    },
    "analysis": {
        "kept.known": ("tests/analysis/test_known.py",),
        "results.clocks": ("tests/analysis/test_clocks.py",),
        "kept.ledger": ("tests/analysis/test_ledger.py", "tests/analysis/test_intake.py"),
        "kept.intake": ("tests/analysis/test_intake.py",),
        "words": ("tests/analysis/test_words.py",),
        "engines.folders": ("tests/analysis/test_folders.py",),
        "results.holes": ("tests/analysis/test_holes.py",),
        "results.tables": ("tests/analysis/test_tables.py",),
        "engines.queries": ("tests/analysis/test_queries.py",),
        "verdicts.blame": ("tests/analysis/test_blame.py",),
        "verdicts.verdict": ("tests/analysis/test_verdict.py",),
    },
    "messages": {
        "kept.backlog": ("tests/messages/kept/test_backlog.py",),
        "sets.codec": ("tests/messages/sets/test_codec.py",),
        "calls.frames": ("tests/messages/calls/test_frames.py",),
        "kept.inbox": ("tests/messages/kept/test_inbox.py",),
        "kept.log": (
            "tests/messages/kept/test_log.py",
            "tests/messages/kept/test_log_retention.py",
            "tests/messages/kept/test_log_writer.py",
        ),
        "sets.message": ("tests/messages/sets/test_message.py",),
        "packets.pacing": ("tests/messages/packets/test_pacing.py",),
        "packets.parts": ("tests/messages/packets/test_parts.py",),
        "topics.requests": ("tests/messages/topics/test_requests.py",),
        "kept.segments": ("tests/messages/kept/test_segments.py",),
        "sets.sets": ("tests/messages/sets/test_sets.py",),
        "kept.outbox": ("tests/messages/kept/test_outbox.py", "tests/messages/kept/test_outbox_sender.py"),
        "broker.disk_room": ("tests/messages/broker/test_disk_room.py",),
        "broker.groups": ("tests/messages/broker/test_groups.py",),
        "broker.positions": ("tests/messages/broker/test_positions.py",),
        "broker.progress": ("tests/messages/broker/test_groups.py",),
        "broker.protocol": ("tests/messages/broker/test_protocol.py",),
        "broker.storing": ("tests/messages/broker/test_storing.py",),
        "broker.topics": ("tests/messages/broker/test_topics.py", "tests/messages/broker/test_storing.py"),
    },
    "face": {
        "errors": ("tests/test_errors.py",),
        "refusals": ("tests/test_refusals.py",),
        "relay_place": ("tests/several_relays",),
        "several_relays": ("tests/several_relays",),
        "status": ("tests/test_status.py",),
        "streams.service_at_relays": (
            "tests/several_relays/test_service_at_relays.py",
            "tests/several_relays/test_asking_again.py",
            "tests/several_relays/test_everywhere.py",
        ),
    },
}
LEFT_OUT = (
    "tests/core/test_hostile.py",
    "tests/core/test_idle.py",
    "tests/core/test_pair.py",
    "tests/core/test_windows.py",
    "tests/exchange/test_goals.py",
    "tests/servlet/switch/test_hostile.py",
)


@dataclass(frozen=True, slots=True, order=True)
class Module:
    """One source file. `name` is short: core.send.rtt, switch.model, client.forward.traffic, face.errors."""

    area: str
    inner: str
    """Its dotted name within the area: send.rtt."""

    @property
    def name(self) -> str:
        return f"{self.area}.{self.inner}"

    @property
    def path(self) -> Path:
        return SOURCES[self.area].joinpath(*self.inner.split(".")).with_suffix(".py")

    @property
    def dotted(self) -> str:
        return module_name(self.path)

    @property
    def own_tests(self) -> str:
        """The beginning of the names of the test files that mirror this module."""
        if self.area in SINGLE:
            return self.tests[0].removesuffix(".py")
        *folders, stem = self.inner.split(".")
        return "/".join((self.tests[0], *folders, f"test_{stem}"))

    @property
    def tests(self) -> tuple[str, ...]:
        """The files and folders of tests that must notice a change of it."""
        return SINGLE[self.area][self.inner] if self.area in SINGLE else TESTS[self.area]


def every_module(root: Path) -> list[Module]:
    """All modules that can be chosen, in order."""
    return [
        Module(area, inner)
        for area, source in SOURCES.items()
        for path in sorted((root / source).rglob("*.py"))
        if path.stem not in NOT_CHANGED
        for inner in (".".join(path.relative_to(root / source).with_suffix("").parts),)
        if inner in SINGLE.get(area, (inner,))
    ]


def choose(root: Path, words: Iterable[str]) -> list[Module]:
    """The modules that names of areas (core), folders (core.send) and modules (core.send.rtt) select. ValueError for an
    unknown name."""
    known = every_module(root)
    chosen: list[Module] = []
    for word in words:
        meant = [module for module in known if is_within(module.name, word) or is_within(module.dotted, word)]
        if not meant:
            raise ValueError(f"no module {word}; as in: core, core.send, exchange.lanes, switch.model")
        chosen += [module for module in meant if module not in chosen]
    return chosen or known


def pytest_arguments(modules: Iterable[Module]) -> list[str]:
    """Arguments for pytest: the tests of these modules."""
    paths = {path: None for module in modules for path in module.tests}
    return [*paths, *(f"--ignore={path}" for path in LEFT_OUT)]
