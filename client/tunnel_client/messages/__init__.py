"""Messages for programs with threads: producers, consumers and calls over blocking sockets. See docs/MESSAGES.md.

Every method may be called from any thread of the program, and blocks only that thread. BlockingProducer writes to its
socket in that thread. One event loop in a private thread, the one that carries the sockets of the tunnel, does the work
of the other classes, with those of `tunnel.messages`.
"""

from tunnel_client.messages.calls import BlockingChannel, BlockingHandler, BlockingTable
from tunnel_client.messages.consumer import BlockingConsumer
from tunnel_client.messages.listener import BlockingGroupConsumer, BlockingListener, BlockingMessageHandler
from tunnel_client.messages.producers import BlockingBrokerProducer, BlockingProducer, BlockingQueueProducer

__all__ = [
    "BlockingBrokerProducer",
    "BlockingChannel",
    "BlockingConsumer",
    "BlockingGroupConsumer",
    "BlockingHandler",
    "BlockingListener",
    "BlockingMessageHandler",
    "BlockingProducer",
    "BlockingQueueProducer",
    "BlockingTable",
]
