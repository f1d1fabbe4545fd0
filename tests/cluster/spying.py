"""Who has a secret of the shell that starts ranks over two hosts."""

import contextlib
import threading
from collections.abc import Iterator

from virtual_hosts import Host

SECRET = "dummy-3f1c"


@contextlib.contextmanager
def spied(host1: Host, host2: Host) -> Iterator[tuple[set[int], set[str]]]:
    """Looks over and over which ranks run, and who has SECRET: on a command line, or on host2."""
    ranks: set[int] = set()
    leaks: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            for host in (host1, host2):
                for process in host.processes():
                    ranks.update([] if process.rank is None else [process.rank])
                    if any(SECRET in arg for arg in process.args):
                        leaks.add(f"command line on {host.name}: {process.args[0]}")
                    if host is host2 and SECRET.encode() in process.environ:
                        leaks.add(f"environment on {host.name}: {process.args[0]}")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield ranks, leaks
    finally:
        over.set()
        thread.join()
