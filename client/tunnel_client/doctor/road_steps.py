"""The step that says which road is used on this path, why, and what earlier commands have learned of the path."""

import time
from pathlib import Path
from typing import Any

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.ground.carrier_names import ROADS
from tunnel.road_memory import RememberedPath, RoadMemory, local_network, path_name
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.errors import UsageError
from tunnel_client.settings import RelaySettings

__all__ = ["examine_roads", "forget_roads"]


def examine_roads(report: Report, settings: RelaySettings, dialing: Dialing, vanishing: str = "") -> bool:
    """Say which road the findings of the earlier steps lead to, and what is remembered of the path. `vanishing`: what
    does not pass in the size that exchanges need.

    Return whether commands use a link or a websocket, and it works.
    """
    works = {found.step: bool(found.data.get("works")) for found in report.findings if "works" in found.data}
    tried = [road for road in ROADS if road in works]
    chosen = next((road for road in tried if works[road]), "poll")
    if settings.carrier != "auto":
        text = f"{settings.carrier} is used, because you have asked for it"
    elif chosen == "poll" and vanishing:
        text = f"none carries: neither a link nor a websocket works, and {vanishing} vanish"
    elif chosen == "poll":
        kind = "requests with streamed answers carry" if works.get("stream") else "requests and their answers carry"
        text = f"{kind} everything, because neither a link nor a websocket works"
    else:
        text = f"{chosen} carries, the best one that works"
    remembered = _remembered(settings.road_memory, dialing)
    said = "nothing is remembered of this path" if remembered is None else _said(remembered, time.time())
    data: dict[str, Any] = (
        {} if remembered is None else {"remembered": remembered.road, "remembered_at_s": remembered.at_s}
    )
    report.add("roads", Verdict.OK, f"{text}; {said}", tried=tried, chosen=chosen, **data)
    used = chosen if settings.carrier == "auto" else settings.carrier
    return used in ROADS and works.get(used, False)


def forget_roads(path: Path) -> int:
    """Remove what earlier commands have learned; return the number of paths. Raises UsageError if that fails."""
    try:
        return RoadMemory(path).forget()
    except OSError as error:
        raise UsageError(f"{path} cannot be removed: {error.strerror}: check its directory") from None


def _remembered(path: str | Path | None, dialing: Dialing) -> RememberedPath | None:
    if path is None:
        return None
    proxy = str(dialing.proxy) if dialing.proxy is not None else None
    return RoadMemory(Path(path)).recall(path_name(str(dialing.base), proxy, local_network()))


def _said(remembered: RememberedPath, now_s: float) -> str:
    minutes = max(0, round((now_s - remembered.at_s) / 60))
    age = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
    failed = [f"{road.name}: {' '.join(road.why.split())}" for road in remembered.roads if road.why]
    why = f" ({'; '.join(failed)})" if failed else ""
    when = f"{age} ago" if minutes else "just now"
    return f"{when}, {remembered.road} carried{why}"
