"""The examples of docs/MESSAGES.md and docs/BROKER.md run as the documents have them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SECTIONS = [
    section for name in ("MESSAGES.md", "BROKER.md") for section in (ROOT / "docs" / name).read_text().split("\n## ")
]
EXAMPLES = [
    (section.partition("\n")[0], section.split("```python\n")[1].partition("```")[0])
    for section in SECTIONS
    if "```python\n" in section and not section.startswith("First steps\n")  # tests/test_quick_start.py runs those
]
SHOWN = {
    "Producers": ["orders 3 one", "orders 3 two", *(f"orders 0 number {number}" for number in range(5))],
    "Packets of any size": ["got 5 bytes", "a ping beside it took True", "got 5000000 bytes"],
    "Calls": ["10 b'17.50' {'currency': 'EUR'}", "code 100 which item?"],
    "Outbox and inbox": ["1 0 b'an order'"],
    "Logs, brokers and consumers": ["0 b'first'", "1 b'second'"],
    "From threads": ["17.50 for tea, 17.50 for milk, 17.50 for ink"],
    "A producer and a listener in one program": [
        "stored at 1 0",
        "orders 1 0 milk",
        "orders 1 1 tea",
        "orders 1 2 ink",
        "billing 1 3 lag 0",
    ],
}


def test_every_example_is_known() -> None:
    assert [title for title, _ in EXAMPLES] == list(SHOWN)


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_runs(title: str, code: str) -> None:
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=100)
    assert result.stderr == ""
    assert sorted(result.stdout.splitlines()) == sorted(SHOWN[title])
