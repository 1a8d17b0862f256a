"""The causes that a report's verdict chooses from: each groups stalls and limits, and names the place to look at."""

from typing import NamedTuple

__all__ = ["FAMILIES", "OF_LIMIT", "OF_STALL", "Family"]


class Family(NamedTuple):
    """One cause of slowness: its title, its meaning and the advice, in the words that the report prints."""

    title: str
    meaning: str
    advice: str
    """The setting or the place to look at."""


FAMILIES = {
    "writer": Family(
        "the application wrote slowly",
        "everything that it had written was sent, and the sender waited for more",
        "Look at the program that writes, or at what it waits for; the tunnel had room for more",
    ),
    "reader": Family(
        "the application did not read",
        "bytes that had arrived waited for it, or its window was shut because its buffer was full",
        "Look at the program that reads at the other end, or at the target behind the exit",
    ),
    "window": Family(
        "the receive window was small",
        "the window was full of bytes in flight, although the reader kept up",
        "Look at the memory of the receiving endpoint: window_bytes_max and budget_bytes of its EndpointConfig; an "
        "exit whose budget is used up grants 16 KiB to each connection",
    ),
    "edge": Family(
        "the relay had no room for the route",
        "what the relay stores for one route, or for the receiver, was full",
        "Look at the limits of the relay (route_bytes_max and mailbox_bytes_max), and at why the receiver takes so "
        "little from it",
    ),
    "rate": Family(
        "the rate of the path",
        "bytes waited, all windows were open, and the carrier took as much as the path let through",
        "Nothing was wrong with the tunnel; look at the bandwidth of the slowest hop, and at the processors of both "
        "ends and the relay",
    ),
    "delay": Family(
        "the round trip of the path",
        "the sender waited for acknowledgements, which take a round trip",
        "Look at the way between the ends and the relay: a relay that is nearer, or a carrier that needs fewer round "
        "trips (link instead of poll), makes it shorter",
    ),
    "bodies": Family(
        "small bodies times long round trips",
        "bytes waited although nothing failed: each request carried little and took a long round trip",
        "Look at what keeps the requests small: a limit on bodies in a proxy or the relay; a link instead of poll does "
        "not need a round trip for each body",
    ),
    "http": Family(
        "the HTTP path failed",
        "exchanges failed, were refused or had to be repeated, or the relay was away",
        "Run tunnel doctor, and look at the logs of the proxies between this endpoint and the relay",
    ),
    "tcp": Family(
        "TCP under the carrier",
        "the connection that carries the exchanges lost segments and sent them again",
        "Look at the network below HTTP, between this endpoint and the next proxy or the relay",
    ),
    "polls": Family(
        "no poll was open",
        "no request was open at the relay, so nothing could come back",
        "Look at the pull interval, and at the number of requests that the path allows at once",
    ),
    "loss": Family(
        "packets or their acknowledgements were lost",
        "packets had to be sent again, and the sender waited until it noticed that they were lost",
        "Look at what drops packets: the report's section on losses names the place",
    ),
    "connecting": Family(
        "the target answered late",
        "CONNECT had no answer yet, from a target that was dialled or a service that was to accept",
        "Look at the target or the service, and at the log of the exit that dials it",
    ),
    "loop": Family(
        "the sender's process was busy or stopped",
        "its event loop ran late",
        "Look at the process of the sender: the processor, the memory, and what else runs in its event loop",
    ),
    "peer_loop": Family(
        "the receiver's process was busy or stopped",
        "its event loop ran late",
        "Look at the process of the receiver: the processor, the memory, and what else runs in its event loop",
    ),
    "relay_loop": Family(
        "the relay's process was busy or stopped",
        "its event loop ran late",
        "Look at the machine of the relay: processor, memory, and other users",
    ),
    "silence": Family(
        "the other end fell silent",
        "bytes were in flight when the trace ended, and nothing came back",
        "Look at whether the process at the other end, or the relay, still ran at the end of the trace",
    ),
}

OF_STALL = {
    "loop_lag": "loop",
    "peer_loop_lag": "peer_loop",
    "relay_loop_lag": "relay_loop",
    "carrier_http": "http",
    "carrier_tcp": "tcp",
    "connecting": "connecting",
    "no_poll_outstanding": "polls",
    "flow_control_peer": "reader",
    "flow_control_relay": "edge",
    "window_small": "window",
    "ack_delay_or_loss": "loss",
    "double_retransmission": "loss",
    "tail_retransmission": "loss",
    "loss": "loss",
    "carrier_busy": "rate",
    "packet_delay": "delay",
    "no_answer": "silence",
    "application": "writer",
}
"""The family of each cause of a stall (words.STALLS)."""

OF_LIMIT = {
    "idle": "writer",
    "all_sent": "writer",
    "awaiting": "delay",
    "connecting": "connecting",
    "ending": "delay",
    "reader_slow": "reader",
    "window_full": "window",
    "edge_reached": "edge",
    "carrier_full": "rate",
}
"""The family of each limit (limits.LIMITS)."""
