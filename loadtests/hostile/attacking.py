"""What every attacker's process does around its attack."""

import asyncio
from collections.abc import Awaitable

from tunnel.process.event_loops import new_event_loop

__all__ = ["attack_until_killed"]


def attack_until_killed(attack: Awaitable[None]) -> int:
    """Print `attacking`, then run the attack, which ends only with the process."""
    print("attacking", flush=True)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(attack))
    return 0


async def _run(attack: Awaitable[None]) -> None:
    await attack
