"""Names the rank that freezes, ends or hangs while the others wait for it, and ends all ranks.

In a collective a rank waits for the others in C code, for ever and deaf to signals, and Horovod's
own stall check waits with it. So each rank has a thread here that tells the chief's thread once a
second what its main thread is at (`liveness.py`), and hears from it as often. When a rank is at
fault, or its connection closes without a goodbye because its process has ended, the chief prints
one RANK line, tells the others, and all end with that code. If it is the chief that is silent or
gone, the lowest rank left speaks. Seconds in which a thread itself didn't run, on a machine that
was suspended, are not counted.
"""

import contextlib
import ctypes
import os
import secrets
import selectors
import signal
import socket
import threading
import time

from data_tools.errors import EXIT_CODES, RANK, DataError, to_stderr
from hvd_train import heartbeat, liveness
from hvd_train.heartbeat import Connection, Offer
from hvd_train.liveness import Peer

BEAT = 1.0
"""Seconds between two signs of life."""
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
"""Of prctl(2)."""
EXPLAIN_SECONDS = 5.0
"""How long a rank whose collective failed waits to hear whose fault it was."""


def wake_when_orphaned() -> None:
    """Asks the system for SIGCONT when the parent ends, be it a launcher, its daemon or sshd.

    A rank that is stopped can't see that the others have ended, and on another host than the
    launcher's nobody may be left to kill it. Awake, it ends for want of its chief. A signal that
    was asked for before, as by `setpriv --pdeathsig`, stays.
    """
    with contextlib.suppress(AttributeError):  # Linux alone has it
        libc, asked = ctypes.CDLL(None), ctypes.c_int()
        libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(asked))
        if not asked.value:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


class Watch:
    """The thread of a rank; the chief's and the others' differ in whom they listen to."""

    def __init__(self, rank: int, limit: float) -> None:
        self._rank, self._limit = rank, limit
        self._beat = min(BEAT, limit / 4)
        self._explain_seconds = EXPLAIN_SECONDS + (2 * BEAT if rank else 0)  # the chief first
        self._selector = selectors.DefaultSelector()
        self._ear, self._waker = socket.socketpair()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._lock = threading.Lock()  # so that the run's end and a fault exclude each other
        self._closing = False
        self._failed_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def close(self) -> None:
        """Says goodbye, since all ranks have come to the end."""
        with self._lock:
            self._closing = True
        self._waker.send(b".")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._waker.close()
        self._selector.close()

    def explain_failure(self) -> None:
        """Ends the process, whose collective has failed, once it is known whose fault it was."""
        self._failed_at = time.monotonic()
        self._waker.send(b".")
        self._thread.join()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # a bug of ours must not end the run, nor look like a dead rank
            to_stderr(
                f"warning: rank {self._rank} on {socket.gethostname()}: the watchdog failed, "
                f"{type(error).__name__}: {error}; the run goes on without it"
            )
        self._say_goodbye()

    def _watch(self) -> None:
        last = due = time.monotonic()
        while not self._closing:
            ready = self._selector.select(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            if now - last > 3 * self._beat:  # this thread was stopped itself, or starved
                self._forgive(now - last)
            last = now
            for key, _ in ready:
                if key.fileobj is self._ear:
                    self._ear.recv(64)
                else:
                    self._listen(key.data, now)
            if now >= due:
                self._tell_and_judge(now)
                due = now + self._beat
            if self._failed_at is not None and now - self._failed_at > self._explain_seconds:
                self._end(self._unexplained())

    def _forgive(self, seconds: float) -> None:
        raise NotImplementedError

    def _listen(self, connection: Connection | None, now: float) -> None:
        raise NotImplementedError

    def _tell_and_judge(self, now: float) -> None:
        raise NotImplementedError

    def _say_goodbye(self) -> None:
        raise NotImplementedError

    def _end(self, error: DataError) -> None:
        raise NotImplementedError

    def _speak(self, error: DataError) -> None:
        """Prints the line, or ends without it where nobody reads standard error any more."""
        timer = threading.Timer(EXPLAIN_SECONDS, self._exit)
        timer.daemon = True
        timer.start()
        error.print()

    @staticmethod
    def _exit() -> None:
        """Ends the process from this thread; the main thread may wait in C code for ever."""
        os._exit(EXIT_CODES[RANK])

    def _unexplained(self) -> DataError:
        return DataError(
            RANK, f"rank {self._rank} on {socket.gethostname()}",
            "another rank stopped while this one waited for it",
            fix=f"look for that rank's own error above; {liveness.GO_ON}",
        )  # fmt: skip


class ChiefWatch(Watch):
    """Listens to all other ranks and judges."""

    def __init__(self, limit: float, *, one_host: bool) -> None:
        """Opens a port.

        Raises:
            OSError: when there is none to be had.
        """
        super().__init__(0, limit)
        self._listener = heartbeat.listen(one_host=one_host)
        self._selector.register(self._listener, selectors.EVENT_READ)
        now, host = time.monotonic(), socket.gethostname()
        self._own = Peer(rank=0, host=host, pid=os.getpid(), heard=now, moved=now)
        self._others: dict[Connection, Peer] = {}
        self._strangers: set[Connection] = set()
        self._unheard: set[Connection] = set()
        """Those of the others that may have been given up for another address."""
        self.offer = Offer(
            token=secrets.token_hex(32), host=host, pid=os.getpid(),
            addresses=["127.0.0.1"] if one_host else heartbeat.addresses(),
            port=self._listener.getsockname()[1], limit=limit,
        )  # fmt: skip
        self._thread.start()

    def _peers(self) -> list[Peer]:
        heard = [peer for by, peer in self._others.items() if by not in self._unheard]
        return [self._own, *sorted(heard, key=lambda peer: peer.rank)]

    def _forgive(self, seconds: float) -> None:
        for peer in self._peers():
            peer.forgive(seconds)

    def _listen(self, connection: Connection | None, now: float) -> None:
        if connection is None:
            self._accept()
        elif connection in self._strangers:
            self._meet(connection, now)
        elif connection in self._others:
            self._hear(connection, now)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            connection = Connection(sock)
            self._strangers.add(connection)
            self._selector.register(sock, selectors.EVENT_READ, connection)
            connection.send({"nonce": connection.nonce})

    def _meet(self, connection: Connection, now: float) -> None:
        """Answers a rank whose first line proves that it belongs to the run; drops all others."""
        try:
            messages, is_open = connection.receive()
            if is_open and not messages:
                return
            said = messages[0]
            answer = heartbeat.check_introduction(self.offer.token, connection.nonce, said)
            peer = Peer(
                rank=said["rank"], host=said["host"], pid=said["pid"], heard=now, moved=now
            )  # fmt: skip
        except (ValueError, LookupError, TypeError):
            self._drop(connection)
            return
        self._strangers.discard(connection)
        self._others[connection] = peer
        self._unheard.add(connection)
        connection.send(answer)

    def _hear(self, connection: Connection, now: float) -> None:
        messages, is_open = connection.receive()
        peer = self._others[connection]
        if messages:
            self._unheard.discard(connection)
        for message in messages:
            if "bye" in message:
                self._drop(connection)
                return
            peer.tell(message["arrived"], message["doing"], now)
        if not is_open:
            counts = connection not in self._unheard
            self._drop(connection)
            if counts:
                self._end(peer.ended())

    def _drop(self, connection: Connection) -> None:
        self._strangers.discard(connection)
        self._unheard.discard(connection)
        self._others.pop(connection, None)
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _tell_and_judge(self, now: float) -> None:
        self._own.tell(liveness.main.arrived, liveness.main.doing, now)
        for connection in self._others:
            connection.send({})
        for connection in list(self._strangers):
            if now - connection.opened > 2 * heartbeat.REACH_SECONDS:
                self._drop(connection)
        error = liveness.judge(self._peers(), now, self._limit)
        if error is not None:
            self._end(error)

    def _say_goodbye(self) -> None:
        for connection in self._others:
            connection.send({"bye": True})

    def _end(self, error: DataError) -> None:
        """Speaks, lets the others end, and ends."""
        with self._lock:
            if self._closing:
                return
            self._speak(error)
            for connection in self._others:
                connection.send({"end": True})
            deadline = time.monotonic() + BEAT
            for connection in self._others:
                connection.wait_for_end(deadline)
            self._exit()


class FollowerWatch(Watch):
    """Tells the chief of this rank, and listens to it."""

    def __init__(self, rank: int, offer: Offer, connection: Connection) -> None:
        super().__init__(rank, offer.limit)
        now = time.monotonic()
        self._chief = Peer(rank=0, host=offer.host, pid=offer.pid, heard=now, moved=now)
        self._connection: Connection | None = connection
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        self._tell_and_judge(now)  # only now the chief counts on this rank
        self._thread.start()

    def _forgive(self, seconds: float) -> None:
        self._chief.forgive(seconds)

    def _listen(self, connection: Connection | None, now: float) -> None:
        assert connection is not None
        messages, is_open = connection.receive()
        self._chief.heard = now
        for message in messages:
            if "end" in message:
                with self._lock:
                    self._exit()
            if "bye" in message:
                self._leave(connection)
                return
        if not is_open:
            self._leave(connection)
            self._end(self._chief.ended())

    def _leave(self, connection: Connection) -> None:
        self._selector.unregister(connection.sock)
        connection.sock.close()
        self._connection = None

    def _tell_and_judge(self, now: float) -> None:
        if self._connection is not None:
            self._connection.send({"arrived": liveness.main.arrived, "doing": liveness.main.doing})
            if now - self._chief.heard > self._limit:
                self._end(self._chief.silent(self._limit))

    def _say_goodbye(self) -> None:
        if self._connection is not None:
            self._connection.send({"bye": True})

    def _end(self, error: DataError) -> None:
        """Speaks and ends, after the lower ranks: a launcher ends all when the first one does."""
        time.sleep(min(self._rank - 1, 10) * 0.5)
        with self._lock:
            if not self._closing:
                self._speak(error)
                self._exit()


def follow(rank: int, offer: Offer) -> FollowerWatch | None:
    """Connects a rank to the chief by the first address that works; None where none does."""
    local = ["127.0.0.1"] if socket.gethostname() == offer.host else []
    for address in dict.fromkeys([*local, *offer.addresses]):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return FollowerWatch(rank, offer, heartbeat.introduce(rank, offer, address))
    return None
