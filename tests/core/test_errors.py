"""The exceptions that callers may catch."""

import pytest

from tunnel.core.errors import LocalProtocolError, PeerClosedError, TunnelError


@pytest.mark.parametrize("error", [LocalProtocolError, PeerClosedError])
def test_one_base_class_catches_all_errors(error: type[TunnelError]) -> None:
    with pytest.raises(TunnelError, match="why"):
        raise error("why")
