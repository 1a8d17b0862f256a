"""The command of the fault proxy: arguments, exit codes, counters and traces."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from loadtests.faultproxy import (
    Blackhole,
    Delay,
    Drop,
    FaultProxyOptions,
    Flip,
    FrameBuffer,
    FrameClose,
    FrameCut,
    FrameFaults,
    FrameFlip,
    FrameStall,
    Html,
    IdleCut,
    LateDuplicate,
    Status,
    Truncate,
)
from loadtests.faultproxy.cli import EPILOG, parse_arguments, trace_path
from loadtests.faultproxy.recorder import Counts
from tests.loadtests.faultproxy.rig import Client, Origin, in_loop
from tunnel.traces.jsonl import read_records

ROOT = Path(__file__).parents[3]


def test_without_options_the_proxy_causes_no_faults() -> None:
    arguments = parse_arguments(["--listen", "127.0.0.1:0"])
    assert arguments.options == FaultProxyOptions()
    assert (arguments.trace, arguments.json) == (None, False)


def test_the_example_in_the_help_works() -> None:
    example = EPILOG.partition("loadtests.faultproxy")[2].partition("exit codes")[0]
    arguments = parse_arguments(example.replace("\\\n", " ").split())
    assert arguments.options == FaultProxyOptions(
        listen=("127.0.0.1", 3128),
        upstream=("127.0.0.1", 8080),
        seed=7,
        drop_request=Drop(0.05),
        drop_response=Drop(0.05, silent=True),
        duplicate=0.02,
        late_duplicate=LateDuplicate(0.01, 60_000_000),
        delay=Delay(50_000, 20_000),
        truncate=Truncate(0.01),
        flip=Flip(0.01, bits_max=8),
        statuses=(Status(503, 0.02, retry_after_s=1),),
        html=Html(0.01),
        limit_bytes=1 << 20,
        idle_cut=IdleCut(20_000_000),
        blackhole=Blackhole(30_000_000, 60_000_000),
    )
    assert (arguments.trace, arguments.json) == (Path("traces"), True)


def test_flags_and_repeated_options_are_parsed() -> None:
    flags = "--listen a:1 --node proxy-2 --buffer --no-upgrade --one-connection --status 503:0.1 --status 429:0.2:after"
    options = parse_arguments([*flags.split(), "--slots", "2"]).options
    assert options.slots == 2
    assert (options.node, options.buffer, options.no_upgrade, options.one_connection) == ("proxy-2", True, True, True)
    assert options.statuses == (Status(503, 0.1), Status(429, 0.2, after=True))


def test_options_for_faults_of_frames_are_parsed() -> None:
    flags = "--listen a:1 --frame-cut 0.1 --frame-stall 0.2:for=1s --frame-flip 0.3:request --frame-buffer 0.4:5ms"
    options = parse_arguments([*flags.split(), "--frame-close", "0.5:code=1000"]).options
    assert options.frames == FrameFaults(
        close=FrameClose(0.5, code=1000),
        cut=FrameCut(0.1),
        stall=FrameStall(0.2, lasts_us=1_000_000),
        flip=FrameFlip(0.3, "request"),
        buffer=FrameBuffer(0.4, 5_000),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "required: --listen"),
        ("--listen nowhere", "argument --listen: 'nowhere' is not an address: HOST:PORT"),
        ("--listen a:1 --drop-request 5", "argument --drop-request: '5' is not a probability"),
        ("--listen a:1 --status 503", "argument --status: '503' has too few parts"),
        ("--listen a:1 --frame-buffer 0.1", "argument --frame-buffer: '0.1' has too few parts"),
        ("--listen a:1 --slots 0", "argument --slots: '0' is not a number from 1 on"),
        ("--listen a:1 --seed x", "argument --seed: invalid int value"),
        ("--listen a:1 --drop 0.1", "unrecognized arguments: --drop"),
    ],
)
def test_usage_errors_name_the_argument_and_exit_with_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for fault in Counts().faults:
        assert f"--{fault.replace('_', '-')}" in text
    assert "example" in text


def test_a_trace_in_a_directory_is_named_faultproxy_jsonl(tmp_path: Path) -> None:
    assert trace_path(tmp_path) == tmp_path / "faultproxy.jsonl"
    assert trace_path(tmp_path / "new" / "folder") == tmp_path / "new" / "folder" / "faultproxy.jsonl"
    assert (tmp_path / "new" / "folder").is_dir()
    assert trace_path(tmp_path / "file.jsonl") == tmp_path / "file.jsonl"


async def start(*arguments: str) -> tuple[asyncio.subprocess.Process, str]:
    """Start the command; return its process and the first line that it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadtests.faultproxy",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stderr is not None
    return process, (await process.stderr.readline()).decode()


@in_loop
@pytest.mark.parametrize(("end", "as_json"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
async def test_the_proxy_serves_until_a_signal_ends_it(tmp_path: Path, end: signal.Signals, as_json: bool) -> None:
    trace = tmp_path / "trace.jsonl"
    options = ["--html", "1:after", "--trace", str(trace), "--node", "proxy-2", *(["--json"] if as_json else [])]
    async with Origin() as origin:
        process, line = await start("--listen", "127.0.0.1:0", "--upstream", origin.url, *options)
        assert line.startswith("listening on http://127.0.0.1:")
        host, _, port = line.strip().rpartition("/")[2].partition(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        for _ in range(2):
            assert (await client.post(b"body")).headers["content-type"].startswith("text/html")
        process.send_signal(end)  # while a connection is open
        out, error = await process.communicate()
        await client.close()
    assert (process.returncode, error) == (0, b"")
    if as_json:
        counts = json.loads(out)
        assert (counts["exchanges"], counts["faults"]["html"]) == (2, 2)
        assert set(counts["faults"]) == set(Counts().faults)
    else:
        assert out.decode().split("\n")[-2].split() == ["html", "2"]
    records = list(read_records(trace))
    assert [(record.node, record.event, record.status) for record in records] == [
        ("proxy-2", "fault_injected", 200)
    ] * 2
    assert records[0].time_us <= records[1].time_us


@in_loop
async def test_a_busy_port_and_a_bad_trace_path_are_usage_errors(tmp_path: Path) -> None:
    async with Origin() as origin:
        host, port = origin.address
        process, line = await start("--listen", f"{host}:{port}")
        await process.communicate()
        assert process.returncode == 2
        assert line.startswith("faultproxy: ")
    (tmp_path / "file").write_text("")
    process, line = await start("--listen", "127.0.0.1:0", "--trace", str(tmp_path / "file" / "trace.jsonl"))
    await process.communicate()
    assert process.returncode == 2
    assert "Not a directory" in line
