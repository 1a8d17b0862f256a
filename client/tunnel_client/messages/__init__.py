"""Messages for programs with threads: producers, consumers and calls over blocking sockets. See docs/MESSAGES.md.

Every method may be called from any thread of the program, and blocks only that thread. BlockingProducer writes to its
socket in the thread of the caller. The other classes use those of `tunnel.messages`, which run in one event loop in a
private thread, the one that carries the sockets of the tunnel.
"""

from tunnel_client.messages.calls import BlockingChannel, BlockingHandler, BlockingTable
from tunnel_client.messages.consumer import BlockingConsumer
from tunnel_client.messages.listener import (
    BlockingGroupConsumer,
    BlockingListener,
    BlockingListHandler,
    BlockingMessageHandler,
)
from tunnel_client.messages.producers import BlockingBrokerProducer, BlockingProducer, BlockingQueueProducer

__all__ = [
    "BlockingBrokerProducer",
    "BlockingChannel",
    "BlockingConsumer",
    "BlockingGroupConsumer",
    "BlockingHandler",
    "BlockingListHandler",
    "BlockingListener",
    "BlockingMessageHandler",
    "BlockingProducer",
    "BlockingQueueProducer",
    "BlockingTable",
]
