"""The broker with topics, groups and replicas, and the partition that is served without one.

Where to start
--------------

`server.py` for the broker, `client.py` and `listener.py` for its clients, `protocol.py` for the calls between them.

    the broker
      server.py           the class `Broker`: connections, and the parts below
      settings.py         topics and limits, as an operator sets them
      connection.py, intake.py   one connection; its input, bounded
      users.py            turns, and what each user holds
      topics.py           which topics there are
      partition.py, stored_partition.py   what is kept, in memory or on disk; readers.py says who has read it
      storing.py          how requests get into topics: all checks first
      groups.py, positions.py, memory_groups.py   who reads which partition, and how far; what groups take in memory
      replica.py          copies the partitions of a master
      deleting.py, disk_room.py   removes topics; refuses before the disk is full
      long_work.py        in parts, or going on when the client who asked is gone
    the clients
      client.py           a producer whose sends are answered, and calls
      listener.py         a group's member, which calls a handler for each message
      delivery.py, progress.py   what a handler gets and answers; what is settled
    both
      protocol.py         codes, fields and limits of the calls; events.py has the events for logs
"""

__all__: list[str] = []
