"""The connections of the watchdog: lines of JSON over TCP between ranks that know the run's token.

Both sides prove by HMAC that they know the token, which travels through Horovod and never over
these connections. Whoever doesn't is turned away; nothing that arrives is executed.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from typing import Any

from hvd_train import probe

REACH_SECONDS = 2.0
"""How long a rank waits for each of the chief's addresses."""
MAX_LINE = 4096
"""Bytes of the longest line that is read."""

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What the other ranks must know to reach the chief's watchdog."""

    token: str
    host: str
    pid: int
    addresses: list[str]
    port: int
    limit: float


class Connection:
    """A TCP connection that carries lines of JSON."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.opened = time.monotonic()
        self.nonce = secrets.token_hex(16)
        self._buffer = b""
        self._rest = b""  # of a line of which a part is sent

    def send(self, message: Message) -> None:
        """Sends a line, or nothing if the other side doesn't take it: it must never wait."""
        begun, sent = len(self._rest), 0
        data = self._rest + json.dumps(message).encode() + b"\n"
        with contextlib.suppress(OSError):
            sent = self.sock.send(data)
        self._rest = data[sent:] if sent > begun else self._rest[sent:]

    def receive(self) -> tuple[list[Message], bool]:
        """Returns the lines that have come, and whether the connection is still open.

        Raises:
            ValueError: when something else than lines of JSON objects has come.
        """
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return [], True
        except OSError:
            return [], False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if any(len(line) > MAX_LINE for line in (*lines, self._buffer)):
            raise ValueError("too long a line")
        try:
            messages = [json.loads(line) for line in lines]
        except RecursionError as error:
            raise ValueError("too deep") from error
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("not an object")
        return messages, bool(data)

    def wait_for_end(self, deadline: float) -> None:
        """Reads until the other side closes, at most until a time of time.monotonic()."""
        with contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                self.sock.settimeout(left)
                if not self.sock.recv(65536):
                    return


def listen(*, one_host: bool) -> socket.socket:
    """Opens a free port, for this host alone or for all; accept() waits for nobody there."""
    listener = _open_port(one_host=one_host)
    listener.setblocking(False)  # who has knocked may be gone again
    return listener


def _open_port(*, one_host: bool) -> socket.socket:
    if one_host:
        return socket.create_server(("127.0.0.1", 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def addresses() -> list[str]:
    """Names and addresses by which other hosts may reach this one, the likeliest first."""
    name = socket.gethostname()
    found = [name, *(address.partition("/")[0] for _, address in probe.interfaces())]
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(name, None)]
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def proof(token: str, *said: object) -> str:
    """Shows that its sender knows the token."""
    return hmac.new(token.encode(), json.dumps(said).encode(), hashlib.sha256).hexdigest()


def introduction(token: str, nonce: str, own_nonce: str, rank: int) -> Message:
    """The first line of a rank: who it is, that it knows the token, and a nonce in return."""
    return {
        "rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "nonce": own_nonce,
        "proof": proof(token, nonce, own_nonce, rank),
    }  # fmt: skip


def check_introduction(token: str, nonce: str, said: Message) -> Message:
    """Returns the chief's answer to a rank that knows the token.

    Raises:
        ValueError, KeyError, TypeError: when it doesn't.
    """
    wanted = proof(token, nonce, said["nonce"], said["rank"])
    if not hmac.compare_digest(str(said["proof"]), wanted):
        raise ValueError("a stranger")
    return {"proof": proof(token, said["nonce"], "chief")}


def introduce(rank: int, offer: Offer, address: str) -> Connection:
    """Connects a rank to the chief; each proves to the other that it knows the token.

    Raises:
        OSError, ValueError, KeyError: when nobody answers there, or somebody else.
    """
    sock = socket.create_connection((address, offer.port), timeout=REACH_SECONDS)
    connection = Connection(sock)
    try:
        (greeting,), _ = connection.receive()
        connection.send(introduction(offer.token, greeting["nonce"], connection.nonce, rank))
        (answer, *_), _ = connection.receive()
        wanted = proof(offer.token, connection.nonce, "chief")
        if not hmac.compare_digest(str(answer["proof"]), wanted):
            raise ValueError("not the chief of this run")
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return connection
