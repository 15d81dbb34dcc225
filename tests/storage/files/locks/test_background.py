"""Threads that are waited for: by no lock of the interpreter."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, mmap, threading
from rmq_store.files.locks.background import Background

class Cycle:
    def __init__(self):
        self.own = self
        self.map = mmap.mmap(-1, 1 << 20)  # to give it back lets other threads run

def start_threads():
    while True:
        thread = threading.Thread(target=lambda: None, daemon=True)
        thread.start()
        thread.join()

gc.set_threshold(5, 1, 1)
for _ in range(2):
    threading.Thread(target=start_threads, daemon=True).start()
for _ in range(300):
    for _ in range(3):
        Cycle()
    thread = Background(lambda: None, "x")
    thread.start()
    thread.join()
print("joined")
"""


def test_garbage_that_is_collected_while_a_thread_is_waited_for_does_not_stop_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("joined\n", "")
