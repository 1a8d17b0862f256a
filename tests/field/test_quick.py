"""A few rows of the field, without the parts that take long: the client attaches, some bytes move both ways, and one
echo comes back. `make test-field` measures all rows."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.field.flows import MIB
from tests.field.rows import find_rows
from tests.field.stage import Stage, StageError, start_target
from tests.field.transfers import Echoes, download, upload

_WAIT_S = 60.0  # only a hanging transfer reaches it
_BYTES = MIB // 2


@pytest.fixture(scope="module")
def target() -> Iterator[int]:
    with ExitStack() as stack:
        yield start_target(stack)


@pytest.mark.parametrize(
    ("name", "carrier"),
    [
        pytest.param("apache-upgrade", "link", marks=pytest.mark.real("apache2")),
        pytest.param("varnish", "poll", marks=pytest.mark.real("varnishd")),
        pytest.param("lighttpd", "poll", marks=pytest.mark.real("lighttpd")),
        pytest.param("caddy", "link", marks=pytest.mark.real("caddy")),
        pytest.param("tinyproxy-connect", "link", marks=pytest.mark.real("tinyproxy")),
        pytest.param("privoxy", "poll", marks=pytest.mark.real("privoxy")),
        pytest.param("nginx-8k", "poll", marks=pytest.mark.real("nginx")),
        ("closes-silently", "poll"),
    ],
)
def test_bytes_move_through_the_path(name: str, carrier: str, target: int) -> None:
    async def move(port: int) -> None:
        await upload(port, _BYTES, _WAIT_S)
        await download(port, _BYTES, _WAIT_S)
        async with Echoes(port) as echoes:
            await echoes.once(_WAIT_S)

    with closing(Stage(find_rows(name)[0], carrier, target)) as stage:
        stage.start()
        asyncio.run(move(stage.port))
        assert stage.used_carrier() == carrier


@pytest.mark.real("squid")
def test_where_no_tunnel_can_work_the_client_ends_with_the_exit_code_of_the_row(target: int) -> None:
    row = find_rows("squid-accelerator")[0]
    with closing(Stage(row, "auto", target)) as stage:
        with pytest.raises(StageError) as raised:
            stage.start()
        assert raised.value.code == row.refused
