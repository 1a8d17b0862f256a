"""Any change of a watched file is noticed exactly once."""

from pathlib import Path

from tests.support.loops import in_loop
from tunnel_servlet.web.file_watch import FileWatch


def test_a_change_is_noticed_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    changes: list[int] = []
    watch = FileWatch([path], lambda: changes.append(1))
    watch.look()
    assert changes == []
    path.write_text("x")
    watch.look()
    watch.look()
    assert changes == [1]
    path.with_suffix(".new").write_text("x")
    path.with_suffix(".new").replace(path)
    watch.look()
    path.unlink()
    watch.look()
    assert changes == [1, 1, 1]


@in_loop
async def test_a_watch_checks_periodically_until_it_is_stopped() -> None:
    watch = FileWatch([Path("missing")], lambda: None)
    watch.start()
    first = watch._timer
    watch.look(again=True)
    assert watch._timer is not None
    assert watch._timer is not first
    assert not watch._timer.cancelled()
    assert first is not None
    first.cancel()
    watch.stop()
    assert watch._timer.cancelled()
    idle = FileWatch([], lambda: None)
    idle.start()
    idle.stop()
