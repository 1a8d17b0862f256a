"""The load test of migrations notices a run that proves nothing."""

from loadtests.migrate import Kind, Migration, Report, _proves_nothing


def test_a_transfer_without_its_migrations_or_bytes_proves_nothing() -> None:
    one = Migration("link", "poll", Kind.CLOSED, 0.1)
    assert _proves_nothing(Report(1, 100, 1.0, [one, one]), 2, 100) == ""
    assert "1 of 2 migrations" in _proves_nothing(Report(1, 100, 1.0, [one]), 2, 100)
    assert "99 of 100 bytes" in _proves_nothing(Report(1, 99, 1.0, [one, one]), 2, 100)
    assert _proves_nothing(Report(1, 0, 1.0, [one]), 1, 0)
    assert _proves_nothing(Report(1, 100, 1.0), 0, 100)
