"""Messages over a stream: sets and producers, packets of any size, calls, logs and outboxes. See docs/MESSAGES.md.

The layer needs a stream with `read`, `write` and `drain`; a tunnel's is one, and TCP's another. It uses only the public
face of `tunnel`. Each concept has a folder:

Where to start
--------------

`session.py` for packets, `calls.py` for questions and answers, `producers.py` for messages, `log.py` for what is kept.

    sets/                 messages, and sets of them
      message.py          one message on the wire and on disk; codec.py compresses
      sets.py, file_sets.py   sets of messages, in memory and in files
    topics/               both ends of a topic
      requests.py         the produce request: a topic, a partition, a set
      producers.py, async_producer.py   send at once, or through a queue
      consumer.py, unpacking.py   read by offset; turn what was fetched into messages
    packets/              packets of any size
      session.py          a `MessageSession` reads and writes the stream, and sends parts by priority
      assembler.py, parts.py   splits packets and joins them; the header of a part
      dispatcher.py       gives packets to handlers, in order or side by side
      pacing.py           bounds the data in flight
      bodies.py           bodies in memory or in files
    calls/                questions and answers
      calls.py            many questions at once on one connection; `serve_calls` is the other side
      frames.py, frame_writer.py   the frames of calls, and how they leave
      channels.py         one live channel for each address
    kept/                 what is kept until it is sent or read
      log.py, segments.py   an append-only log, and its files
      outbox.py, inbox.py   keeps messages until a peer has them; keeps each once
      backlog.py, numbered.py   a bounded queue in memory for callers that tolerate loss; its structures
    shared
      errors, life (objects for `with`), payers (who pays for work and memory), resets (an end that must not look good)
    broker/               brokers: see its docstring

Who calls whom
--------------

A producer encodes messages into a set and writes a produce request; `read_requests` reads them at the other side. A
session's `send` gives a packet to the assembler, and its pump takes parts out by priority; received parts go through
the assembler to the dispatcher. An `OutboxSender` reads an outbox's log and sends with calls; the inbox at the other
side appends to a log of its own and answers. A `Consumer` calls a broker's FETCH and gives the bytes to `unpacking`.

Input of a peer raises only within the connection that it came on, which then ends with an error of `errors`. Each name
below is imported when it is first used, as in `tunnel`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunnel.messages.broker.client import BrokerClient, BrokerProducer, Place
    from tunnel.messages.broker.delivery import (
        DeliveredMessage,
        ListenerConfig,
        ListHandler,
        MessageHandler,
        RetryLater,
    )
    from tunnel.messages.broker.listener import GroupConsumer, MessageListener
    from tunnel.messages.broker.protocol import PartitionReport, PositionReport, TopicReport
    from tunnel.messages.broker.replica import Replica
    from tunnel.messages.broker.server import Broker
    from tunnel.messages.broker.settings import BrokerSettings, TopicSpec
    from tunnel.messages.broker.stored_partition import StoredPartition
    from tunnel.messages.calls.calls import CallChannel, CallHandler, Request, Response, serve_calls
    from tunnel.messages.calls.channels import ChannelTable, split_address
    from tunnel.messages.errors import (
        ChannelClosedError,
        ChecksumError,
        CorruptMessageError,
        DecompressError,
        DiscardedError,
        FencedError,
        LogError,
        MalformedFrameError,
        MessageCancelledError,
        MessageError,
        MessageSizeError,
        MessageTooLargeError,
        OffsetOutOfRangeError,
        OutboxError,
        ProducerClosedError,
        RemoteCallError,
        UnknownCodecError,
        UnknownVersionError,
    )
    from tunnel.messages.kept.backlog import BacklogItem, DiscardPolicy, MemoryBacklog
    from tunnel.messages.kept.inbox import Inbox, InboxRecord
    from tunnel.messages.kept.log import Log, LogConfig
    from tunnel.messages.kept.outbox import Outbox, OutboxSender, outbox_handlers
    from tunnel.messages.packets.assembler import AssemblerConfig, Packet, PacketAssembler
    from tunnel.messages.packets.bodies import SpooledBody
    from tunnel.messages.packets.dispatcher import Dispatcher
    from tunnel.messages.packets.session import MessageSession, Priority
    from tunnel.messages.sets.codec import Codec
    from tunnel.messages.sets.file_sets import FileMessageSet
    from tunnel.messages.sets.message import Message, MessageAndOffset
    from tunnel.messages.sets.sets import ByteBufferMessageSet, MessageSet
    from tunnel.messages.topics.async_producer import (
        AsyncProducer,
        AsyncProducerConfig,
        CallbackHandler,
        DefaultEventHandler,
        EventHandler,
        QueueItem,
    )
    from tunnel.messages.topics.consumer import ConsumedMessage, Consumer
    from tunnel.messages.topics.producers import (
        BytesEncoder,
        Encoder,
        JsonEncoder,
        Producer,
        ProducerData,
        RequestMaker,
        StringEncoder,
        SyncProducer,
    )
    from tunnel.messages.topics.requests import ProduceRequest, read_requests

__all__ = [
    "AssemblerConfig",
    "AsyncProducer",
    "AsyncProducerConfig",
    "BacklogItem",
    "Broker",
    "BrokerClient",
    "BrokerProducer",
    "BrokerSettings",
    "ByteBufferMessageSet",
    "BytesEncoder",
    "CallChannel",
    "CallHandler",
    "CallbackHandler",
    "ChannelClosedError",
    "ChannelTable",
    "ChecksumError",
    "Codec",
    "ConsumedMessage",
    "Consumer",
    "CorruptMessageError",
    "DecompressError",
    "DefaultEventHandler",
    "DeliveredMessage",
    "DiscardPolicy",
    "DiscardedError",
    "Dispatcher",
    "Encoder",
    "EventHandler",
    "FencedError",
    "FileMessageSet",
    "GroupConsumer",
    "Inbox",
    "InboxRecord",
    "JsonEncoder",
    "ListHandler",
    "ListenerConfig",
    "Log",
    "LogConfig",
    "LogError",
    "MalformedFrameError",
    "MemoryBacklog",
    "Message",
    "MessageAndOffset",
    "MessageCancelledError",
    "MessageError",
    "MessageHandler",
    "MessageListener",
    "MessageSession",
    "MessageSet",
    "MessageSizeError",
    "MessageTooLargeError",
    "OffsetOutOfRangeError",
    "Outbox",
    "OutboxError",
    "OutboxSender",
    "Packet",
    "PacketAssembler",
    "PartitionReport",
    "Place",
    "PositionReport",
    "Priority",
    "ProduceRequest",
    "Producer",
    "ProducerClosedError",
    "ProducerData",
    "QueueItem",
    "RemoteCallError",
    "Replica",
    "Request",
    "RequestMaker",
    "Response",
    "RetryLater",
    "SpooledBody",
    "StoredPartition",
    "StringEncoder",
    "SyncProducer",
    "TopicReport",
    "TopicSpec",
    "UnknownCodecError",
    "UnknownVersionError",
    "outbox_handlers",
    "read_requests",
    "serve_calls",
    "split_address",
]

_HOMES = {
    "packets.assembler": "AssemblerConfig Packet PacketAssembler",
    "topics.async_producer": "AsyncProducer AsyncProducerConfig CallbackHandler DefaultEventHandler EventHandler "
    "QueueItem",
    "kept.backlog": "BacklogItem DiscardPolicy MemoryBacklog",
    "packets.bodies": "SpooledBody",
    "broker.client": "BrokerClient BrokerProducer Place",
    "broker.delivery": "DeliveredMessage ListHandler ListenerConfig MessageHandler RetryLater",
    "broker.listener": "GroupConsumer MessageListener",
    "broker.protocol": "PartitionReport PositionReport TopicReport",
    "broker.replica": "Replica",
    "broker.server": "Broker",
    "broker.settings": "BrokerSettings TopicSpec",
    "broker.stored_partition": "StoredPartition",
    "calls.calls": "CallChannel CallHandler Request Response serve_calls",
    "calls.channels": "ChannelTable split_address",
    "sets.codec": "Codec",
    "topics.consumer": "ConsumedMessage Consumer",
    "packets.dispatcher": "Dispatcher",
    "errors": "ChannelClosedError ChecksumError CorruptMessageError DecompressError "
    "DiscardedError FencedError LogError MalformedFrameError MessageCancelledError "
    "MessageError MessageSizeError MessageTooLargeError OffsetOutOfRangeError "
    "OutboxError ProducerClosedError RemoteCallError UnknownCodecError UnknownVersionError",
    "sets.file_sets": "FileMessageSet",
    "kept.inbox": "Inbox InboxRecord",
    "kept.log": "Log LogConfig",
    "sets.message": "Message MessageAndOffset",
    "kept.outbox": "Outbox OutboxSender outbox_handlers",
    "topics.producers": "BytesEncoder Encoder JsonEncoder Producer ProducerData RequestMaker StringEncoder "
    "SyncProducer",
    "topics.requests": "ProduceRequest read_requests",
    "packets.session": "MessageSession Priority",
    "sets.sets": "ByteBufferMessageSet MessageSet",
}
_HOME = {name: f"tunnel.messages.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tunnel.messages' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
