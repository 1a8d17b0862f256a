"""The package exports the public names of its modules, and nothing else."""

import importlib
import pkgutil

import tunnel.wire

INTERNAL = {"fields", "form_data", "text_body"}  # helpers of the codecs


def test_every_public_name_is_exported() -> None:
    modules = {module.name for module in pkgutil.iter_modules(tunnel.wire.__path__)} - INTERNAL
    names = [name for module in modules for name in importlib.import_module(f"tunnel.wire.{module}").__all__]
    assert sorted(names) == sorted(tunnel.wire.__all__)
    assert all(hasattr(tunnel.wire, name) for name in names)
