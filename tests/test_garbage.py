"""The garbage collector as commands set it, in a process of its own, since the setting holds for the whole process."""

import gc
import subprocess
import sys

from tests.support.loops import DEADLINE_S
from tunnel.process.garbage import CollectorTime

PROGRAM = """
import gc, weakref
from tunnel.process.event_loops import new_event_loop

class Node:
    def __init__(self):
        self.itself = self

before = len(gc.get_objects())
new_event_loop().close()
print(gc.get_freeze_count() >= 0.9 * before, len(gc.get_objects()) < 0.1 * before)
ended = weakref.ref(Node())
gc.collect()
print(ended())
"""


def test_what_exists_is_left_alone_and_what_comes_later_is_collected() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout == "True True\nNone\n"


def test_the_time_of_collections_of_every_generation_is_counted() -> None:
    found = CollectorTime()
    gc.disable()
    try:
        assert found.total_s == found.longest_s == 0
        nodes = [[number] for number in range(200_000)]
        counted_s = 0.0
        for generation in (0, 1, 2):
            gc.collect(generation)
            assert found.total_s > counted_s
            counted_s = found.total_s
        del nodes
        gc.collect()
        gc.collect()
        assert found.total_s > found.longest_s
    finally:
        gc.enable()
        found.close()
    total_s = found.total_s
    gc.collect()
    assert found.total_s == total_s
