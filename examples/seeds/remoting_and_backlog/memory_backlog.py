"""Section "Backlog", case 1: a buffer in memory, and a policy that says what to discard when it is full.

The policies are those of the CORBA Notification Service, which the document names.

Prints:
    oldest: kept ['b', 'c', 'd'], discarded ['a']
    newest: kept ['a', 'b', 'c'], discarded ['d']
    priority: kept ['a', 'c', 'd'], discarded ['b']
    expired: kept ['a', 'b', 'd'], discarded ['c']
"""

from tunnel.messages import BacklogItem, DiscardPolicy, MemoryBacklog

MESSAGES = [("a", 2, 9.0), ("b", 1, 8.0), ("c", 3, 1.0), ("d", 2, 9.0)]  # with priority, and seconds to live


def main() -> None:
    for policy in DiscardPolicy:
        discarded: list[BacklogItem] = []
        backlog = MemoryBacklog(policy, messages_max=3, discarded=discarded.append, clock=lambda: 0.0)
        for name, priority, ttl in MESSAGES:
            backlog.put(name.encode(), priority=priority, ttl=ttl)
        kept = []
        while (item := backlog.get_nowait()) is not None:
            kept.append(item.payload.decode())
        print(f"{policy.value}: kept {kept}, discarded {[item.payload.decode() for item in discarded]}")


if __name__ == "__main__":
    main()
