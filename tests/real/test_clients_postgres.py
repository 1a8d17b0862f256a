"""PostgreSQL's clients on a real server: psycopg and pgbench through `tunnel forward`, asyncpg under a patch."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from tests.real.clients_rig import LOOPBACK, WAIT_S, Way, wait_until
from tests.real.servers import Server, as_nobody, open_directory, start_server
from tests.support.loops import run
from tests.support.programs import find_program

pytestmark = pytest.mark.real("nginx", "postgres", "initdb", "pgbench")

ROWS = [(number, f"{number:x}" * 8) for number in range(5000)]
COUNT = "select count(*), sum(length(text)) from rows"
SOCKETS: dict[int, Path] = {}  # of the servers, by their port
COUNTED = (len(ROWS), sum(len(text) for _, text in ROWS))


def program(name: str) -> str:
    found = find_program(name)
    assert found
    return found


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    """An empty server that trusts every user and keeps nothing; it refuses to run as root."""
    with open_directory() as directory:
        data = str(directory / "data")
        options = ["-U", "postgres", "--auth=trust", "--no-sync", "--no-instructions", "--locale=C", "-E", "UTF8"]
        command = as_nobody([program("initdb"), "-D", data, *options])
        subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=WAIT_S)

        def make_command(port: int) -> list[str]:
            where = [f"port={port}", f"listen_addresses={LOOPBACK}", f"unix_socket_directories={directory}"]
            settings = [*where, "fsync=off"]
            return as_nobody([program("postgres"), "-D", data, *(word for text in settings for word in ("-c", text))])

        with start_server(make_command, directory=directory, is_up=answers) as server:
            SOCKETS[server.port] = directory / f".s.PGSQL.{server.port}"
            yield server
            server.signal(signal.SIGINT)  # SIGKILL would leave shared memory behind
            server.wait(WAIT_S)


def conninfo(port: int) -> str:
    return f"host={LOOPBACK} port={port} user=postgres dbname=postgres connect_timeout=50"


def answers(port: int) -> bool:
    """Whether the server answers queries: it accepts connections earlier."""
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(conninfo(port)):
        return True
    return False


def test_psycopg(way: Way, postgres: Server) -> None:
    with psycopg.connect(conninfo(way.forward(postgres.port))) as connection, connection.cursor() as cursor:
        before = connection.execute("select pg_backend_pid()").fetchone()
        cursor.execute("create temporary table rows (number int, text text)")
        with way.trouble():
            with cursor.copy("copy rows from stdin") as copy:
                for row in ROWS:
                    copy.write_row(row)
            assert cursor.execute(COUNT).fetchone() == COUNTED
        assert cursor.execute("select number, text from rows order by number").fetchall() == ROWS
        assert cursor.execute("select pg_backend_pid()").fetchone() == before


def test_psycopg_async(way: Way, postgres: Server) -> None:
    """The server is a service: `tunnel expose` on its side, `tunnel forward` on the client's."""

    async def main() -> None:
        port = way.forward_service(way.expose("db", postgres.port))
        connection = await psycopg.AsyncConnection.connect(conninfo(port))
        async with connection, connection.cursor() as cursor:
            await cursor.execute("create temporary table rows (number int, text text)")
            with way.trouble():
                await cursor.executemany("insert into rows values (%s, %s)", ROWS[:1000])  # in a pipeline
            await cursor.execute("select number, text from rows order by number")
            assert await cursor.fetchall() == ROWS[:1000]

    run(main())


def test_psql_over_unix_sockets_on_both_sides(way: Way, postgres: Server, tmp_path: Path) -> None:
    name = way.expose_unix("socket", SOCKETS[postgres.port])
    way.forward_unix(tmp_path / ".s.PGSQL.5432", name)
    psql = [program("psql"), "-h", str(tmp_path), "-p", "5432", "-U", "postgres", "-At", "-v", "ON_ERROR_STOP=1"]
    queries = "create temporary table rows (number int, text text);\n\\copy rows from stdin\n"
    rows = "".join(f"{number}\t{text}\n" for number, text in ROWS)
    command = subprocess.run(
        psql, input=f"{queries}{rows}\\.\n{COUNT};\n", capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert command.stderr == ""
    assert command.stdout.splitlines()[-1] == "|".join(map(str, COUNTED))
    assert (tmp_path / ".s.PGSQL.5432").stat().st_mode & 0o777 == 0o600


def test_asyncpg(way: Way, postgres: Server) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(
            host=LOOPBACK, port=postgres.port, user="postgres", database="postgres", ssl=False, timeout=WAIT_S
        )
        before = connection.get_server_pid()
        heard: asyncio.Queue[str] = asyncio.Queue()
        await connection.add_listener("news", lambda *words: heard.put_nowait(words[-1]))
        await connection.execute("create temporary table rows (number int, text text)")
        with way.trouble():
            await connection.copy_records_to_table("rows", records=ROWS)
            assert tuple(await connection.fetchrow(COUNT)) == COUNTED
        assert [tuple(row) for row in await connection.fetch("select * from rows order by number")] == ROWS
        assert await connection.fetchval("select pg_backend_pid()") == before
        await connection.execute("notify news, 'all of it'")
        assert await heard.get() == "all of it"
        await connection.close()

    with way.patch():
        run(main())


def test_pgbench(way: Way, postgres: Server) -> None:
    """Every transaction takes effect once: the server counts as many as pgbench."""
    there = ["-h", LOOPBACK, "-U", "postgres", "-p"]
    pgbench = program("pgbench")
    subprocess.run(
        [pgbench, *there, str(postgres.port), "-i", "-q", "postgres"], check=True, capture_output=True, timeout=WAIT_S
    )
    command = [pgbench, *there, str(way.forward(postgres.port)), "-n", "-c", "4", "-t", "10", "postgres"]
    with (
        psycopg.connect(conninfo(postgres.port), autocommit=True) as direct,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as bench,
    ):
        try:
            wait_until(lambda: history(direct) > 3, "pgbench begins")
            with way.trouble():
                said, _ = bench.communicate(timeout=WAIT_S)
        finally:
            bench.kill()
        assert bench.returncode == 0, said
        assert "number of transactions actually processed: 40/40" in said
        assert history(direct) == 40


def history(direct: psycopg.Connection) -> int:
    row = direct.execute("select count(*) from pgbench_history").fetchone()
    assert row is not None
    return int(row[0])
