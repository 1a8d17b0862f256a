"""Listeners are notified once of each change, and one that raises does not affect the others."""

from tunnel.status import Listeners


class RecordingListener:
    def __init__(self) -> None:
        self.told: list[str] = []

    def disconnected(self, reason: str) -> None:
        self.told.append(f"disconnected: {reason}")

    def reconnected(self) -> None:
        self.told.append("reconnected")

    def read_closed(self, text: str) -> None:
        self.told.append(f"read closed: {text}")


class Clumsy(RecordingListener):
    def disconnected(self, reason: str) -> None:
        raise LookupError(reason)


def test_listeners_are_notified_once_of_each_change() -> None:
    listeners = Listeners(lambda message, error: None)
    told = RecordingListener()
    listeners.connection.append(told)
    listeners.error.append(told)
    listeners.absent("not yet there")
    listeners.present()
    assert told.told == []
    listeners.present()
    listeners.absent("gone")
    listeners.absent("still gone")
    listeners.on_failed("reset")
    listeners.present()
    assert told.told == ["disconnected: gone", "read closed: reset", "reconnected"]


def test_a_listener_that_raises_is_reported_and_the_others_are_notified() -> None:
    reported: list[tuple[str, Exception]] = []
    listeners = Listeners(lambda message, error: reported.append((message, error)))
    told = RecordingListener()
    listeners.connection += [Clumsy(), told]
    listeners.present()
    listeners.absent("gone")
    assert told.told == ["disconnected: gone"]
    assert [(message, str(error)) for message, error in reported] == [
        ("a listener of the attachment raised", "gone"),
    ]
