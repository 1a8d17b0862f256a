"""The table of services: which attachments listen under which name, in rotation (2.8, 3.2)."""

from collections.abc import Callable

from tunnel.wire import ListenState, ListenStatus
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.decisions import MayListen
from tunnel_servlet.switch.model import Listener, ServedAttachment

__all__ = ["Services"]


class Services:
    """All listeners. Those of one name take turns. `changed` is called with a name whose listeners have changed."""

    def __init__(self, config: SwitchConfig, may_listen: MayListen, changed: Callable[[str], None]) -> None:
        self._config = config
        self._may_listen = may_listen
        self._changed = changed
        self._up: dict[str, list[Listener]] = {}  # in rotation: the first one gets the next CONNECT

    def __len__(self) -> int:
        return sum(map(len, self._up.values()))

    def announce(self, attachment: ServedAttachment, state: ListenState) -> ListenState | None:
        """Apply LISTEN_STATE and return the answer, the present state. Return None if the packet is out of date."""
        listener = attachment.listeners.get(state.name)
        if listener is not None and state.version < listener.version:
            return None
        if state.state != ListenStatus.UP:
            if listener is not None and state.version > listener.version:
                listener.version = state.version
                self._take_down(listener)
            is_up = listener is not None and listener.is_up  # only a repeated version changes nothing
            return _answer(state, ListenStatus.UP if is_up else ListenStatus.DOWN)
        if not self._may_listen(attachment.account.user, state.name):
            return _answer(state, ListenStatus.REFUSED)
        if listener is None:
            if not self._make_room(attachment):
                return _answer(state, ListenStatus.REFUSED)
            listener = attachment.listeners[state.name] = Listener(attachment, state.name)
        elif state.version == listener.version:
            return _answer(state, ListenStatus.UP if listener.is_up else ListenStatus.DOWN)
        listener.version = state.version
        listener.backlog = state.backlog
        if not listener.is_up:
            listener.is_up = True
            self._up.setdefault(state.name, []).append(listener)
        self._changed(state.name)
        return _answer(state, ListenStatus.UP)

    def may_listen(self, user: str, name: str) -> bool:
        """Whether the rules let the user listen under the name, announced or not."""
        return self._may_listen(user, name)

    def candidates(self, name: str) -> list[Listener]:
        """Return the listeners of this name in rotation order, the next one first."""
        return list(self._up.get(name, ()))

    def chosen(self, listener: Listener) -> None:
        """Move a listener that was handed a CONNECT to the end of the rotation."""
        turns = self._up[listener.name]
        turns.remove(listener)
        turns.append(listener)

    def forget(self, attachment: ServedAttachment) -> None:
        """Remove all listeners of an attachment that was removed."""
        for listener in attachment.listeners.values():
            self._take_down(listener)
        attachment.listeners.clear()

    def _take_down(self, listener: Listener) -> None:
        if not listener.is_up:
            return
        listener.is_up = False
        turns = self._up[listener.name]
        turns.remove(listener)
        if not turns:
            del self._up[listener.name]
        self._changed(listener.name)

    def _make_room(self, attachment: ServedAttachment) -> bool:
        """Make room for another name, by forgetting the oldest one that is down if necessary.

        Return False if that is not possible.
        """
        listeners = attachment.listeners
        if len(listeners) < self._config.names_per_attachment_max:
            return True
        down = next((name for name, listener in listeners.items() if not listener.is_up), None)
        if down is None:
            return False
        del listeners[down]
        return True


def _answer(state: ListenState, status: ListenStatus) -> ListenState:
    return ListenState(state.version, status, 0, state.name)
