"""The public interface of tunnel.messages: names are imported on first use."""

import subprocess
import sys

import pytest

import tunnel.messages


def test_exported_names_can_be_imported_and_others_cannot() -> None:
    assert set(tunnel.messages.__all__) <= set(dir(tunnel.messages))
    for name in tunnel.messages.__all__:
        assert getattr(tunnel.messages, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        tunnel.messages.Nothing  # noqa: B018


def test_importing_the_package_imports_neither_a_carrier_nor_zstd() -> None:
    code = (
        "import sys, tunnel.messages; from tunnel.messages import *; print({'aiohttp', 'zstandard'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
