"""The attachment id of the exit in the relay's own process: a marker and the relay's epoch (6.1).

It changes with every start of the relay. So a resume that names the exit of an earlier process, whose connections died
with it, is recognised at once.
"""

import struct

__all__ = ["inline_exit_id", "is_inline_exit"]

_MARKER = b"inline\0\0"
_EPOCH = struct.Struct("!Q")


def inline_exit_id(epoch: int) -> bytes:
    """Return the id of the inline exit of the relay with this epoch."""
    return _MARKER + _EPOCH.pack(epoch)


def is_inline_exit(identity: bytes) -> bool:
    """Return whether this id is that of an inline exit, of this relay or of another one."""
    return identity.startswith(_MARKER)
