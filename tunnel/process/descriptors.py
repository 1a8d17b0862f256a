"""How many descriptors this process may open: each connection of a command needs at least one."""

from contextlib import suppress

__all__ = ["allowed_connections", "raise_descriptor_limit"]

_WISHES = (1 << 20, 1 << 16, 10_240)  # systems refuse too large a wish, even if the hard limit is unlimited


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one, or as near to it as the system allows. Only commands call this.

    The soft limit, often 1,024 or 256, protects programs that use select(). The event loops here use other calls.
    Programs that a command starts inherit the limit.
    """
    try:
        import resource
    except ImportError:
        return  # Windows has no such limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wish in _WISHES:
        target = wish if hard == resource.RLIM_INFINITY else min(wish, hard)
        if soft == resource.RLIM_INFINITY or target <= soft:
            return
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            return


def allowed_connections(wanted: int, *, beside: int = 0) -> int:
    """Return `wanted`, or fewer: three quarters of the descriptors that this process may open, less those
    that `beside` others need.

    Without it, one user could take all descriptors by connections that a server's own limits allow.
    """
    try:
        import resource
    except ImportError:
        return wanted  # Windows has no such limit
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, (soft - beside) * 3 // 4))
