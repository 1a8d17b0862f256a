"""How many descriptors this process may open: each connection of a command needs at least one."""

from contextlib import suppress

__all__ = ["raise_descriptor_limit"]

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
