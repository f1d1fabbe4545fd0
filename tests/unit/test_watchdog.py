"""Processes that watch over each other: one ends badly, and all end with one line that names it."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_train import heartbeat, probe, watchdog
from hvd_train.heartbeat import Offer
from hvd_train.watchdog import ChiefWatch

HOST = socket.gethostname()
LIMIT = "1"


@dataclasses.dataclass
class Ended:
    """How ranks ended: exit codes, which are None where one had to be killed, and their output."""

    pids: list[int]
    codes: list[int | None]
    errors: list[str]

    @property
    def lines(self) -> list[str]:
        """The error lines of all ranks."""
        lines = [line for text in self.errors for line in text.splitlines()]
        return [line for line in lines if line.startswith("error:")]


def run(folder: Path, *whats: str, limit: str = LIMIT, seconds: float = 20) -> Ended:
    """Starts a process a word and waits; one that is left at the end is killed."""
    script = Path(__file__).parent / "watched_rank.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, script, folder, str(rank), str(len(whats)), limit, what],
            stderr=subprocess.PIPE, text=True,
        )
        for rank, what in enumerate(whats)
    ]  # fmt: skip
    deadline = time.monotonic() + seconds
    codes: list[int | None] = []
    for rank, what in zip(ranks, whats, strict=True):
        try:
            # One that is stopped doesn't end; a launcher kills it.
            left = max(0.0, deadline - time.monotonic())
            codes.append(None if what == "stop" else rank.wait(left))
        except subprocess.TimeoutExpired:
            codes.append(None)
    errors = []
    for rank in ranks:
        rank.kill()
        errors.append(rank.communicate()[1])
    return Ended([rank.pid for rank in ranks], codes, errors)


def silent(rank: int, pid: int) -> str:
    return (
        f"error: RANK: rank {rank} on {HOST}: process {pid} is silent for 1 s; see whether it is "
        "stopped, its host out of memory or cut off; --resume goes on from the last checkpoint, "
        "if there is one; --stall-seconds sets the limit"
    )


def ended(rank: int, pid: int) -> str:
    return (
        f"error: RANK: rank {rank} on {HOST}: process {pid} ended while the others waited for it; "
        "look for that rank's own error above, or in the system's log if it was killed; "
        "--resume goes on from the last checkpoint, if there is one"
    )


def test_a_frozen_rank_is_named_once_and_all_others_end(tmp_path: Path) -> None:
    found = run(tmp_path, "wait", "wait", "stop", "wait")
    assert found.codes == [7, 7, None, 7]
    assert found.lines == [silent(2, found.pids[2])]


def test_a_frozen_chief_is_named_by_the_lowest_rank_and_all_others_end(tmp_path: Path) -> None:
    found = run(tmp_path, "stop", "wait", "wait")
    assert found.codes == [None, 7, 7]
    # Without a launcher that ends the other when the first has spoken, it speaks too.
    assert found.lines == [silent(0, found.pids[0])] * 2


def test_a_rank_that_is_killed_is_named_at_once_whatever_the_limit(tmp_path: Path) -> None:
    found = run(tmp_path, "wait", "kill", "wait", limit="1000")
    assert found.codes == [7, -9, 7]
    assert found.lines == [ended(1, found.pids[1])]


def test_a_chief_that_is_killed_is_named_at_once(tmp_path: Path) -> None:
    found = run(tmp_path, "kill", "wait", limit="1000")
    assert found.codes == [-9, 7]
    assert found.lines == [ended(0, found.pids[0])]


def test_a_rank_that_fails_tells_its_own_error_before_it_is_named(tmp_path: Path) -> None:
    found = run(tmp_path, "wait", "raise", limit="1000")
    assert found.codes == [7, 1]
    assert found.errors[1].endswith("RuntimeError: a bug of this rank\n")
    assert found.lines == [ended(1, found.pids[1])]


def test_a_frozen_rank_whose_parent_ends_wakes_and_ends_too(tmp_path: Path) -> None:
    script = Path(__file__).parent / "watched_rank.py"

    def command(rank: int, what: str) -> list[str]:
        return [sys.executable, str(script), str(tmp_path), str(rank), "2", LIMIT, what]

    with subprocess.Popen(command(0, "wait"), stderr=subprocess.PIPE) as chief, subprocess.Popen(
        ["sh", "-c", '"$@" & wait', "sh", *command(1, "stop")],
        stderr=subprocess.PIPE, start_new_session=True,
    ) as parent:  # fmt: skip
        try:
            assert chief.wait(20) == 7
            parent.kill()
            parent.communicate(timeout=20)  # comes to the end of the pipe when the rank has ended
        finally:
            chief.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


STARTED = """
import ctypes, sys
from hvd_train import start

def tell():
    signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(signal))  # PR_GET_PDEATHSIG
    print(signal.value)
    sys.exit()

start.over_ranks(tell, [], "none")
"""
RANK_1 = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrapper", "variables", "number"),
    [
        ([], RANK_1, signal.SIGCONT),
        ([], {}, 0),
        (["setpriv", "--pdeathsig", "KILL"], RANK_1, signal.SIGKILL),
        (["setpriv", "--pdeathsig", "KILL"], {}, signal.SIGKILL),
    ],
)
def test_only_ranks_wake_when_orphaned_and_the_users_own_signal_stays(
    wrapper: list[str], variables: dict[str, str], number: int
) -> None:
    if wrapper and shutil.which(wrapper[0]) is None:
        pytest.skip(f"no {wrapper[0]}")
    ran = subprocess.run(
        [*wrapper, sys.executable, "-c", STARTED], capture_output=True, text=True, check=True,
        env={**os.environ, **variables}, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert int(ran.stdout) == number


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_lives_but_hangs_is_named(tmp_path: Path, rank: int) -> None:
    whats = ["wait", "wait", "wait"]
    whats[rank] = "hang"
    found = run(tmp_path, *whats)
    assert found.codes == [7, 7, 7]
    assert found.lines == [
        f"error: RANK: rank {rank} on {HOST}: process {found.pids[rank]} lives, but is training "
        "for 1 s while others wait; see whether its disk answers; --resume goes on from the last "
        "checkpoint, if there is one; --stall-seconds sets the limit"
    ]


def test_ranks_whose_collective_failed_name_the_one_that_is_gone(tmp_path: Path) -> None:
    found = run(tmp_path, "fail", "kill", "fail", limit="1000")
    assert found.codes == [7, -9, 7]
    assert found.lines == [ended(1, found.pids[1])]


def test_ranks_whose_collective_failed_though_all_live_say_so_once(tmp_path: Path) -> None:
    found = run(tmp_path, "fail", "fail", limit="1000")
    assert found.codes == [7, 7]
    assert found.lines == [
        f"error: RANK: rank 0 on {HOST}: another rank stopped while this one waited for it; look "
        "for that rank's own error above; --resume goes on from the last checkpoint, if there is "
        "one"
    ]


def test_ranks_that_say_goodbye_end_well(tmp_path: Path) -> None:
    found = run(tmp_path, "close", "close", "close")
    assert (found.codes, found.errors) == ([0, 0, 0], ["", "", ""])


# Who may connect


@pytest.fixture
def chief() -> Iterator[ChiefWatch]:
    watch = ChiefWatch(1000, one_host=True)
    yield watch
    watch.close()


def connect(offer: Offer) -> socket.socket:
    return socket.create_connection((offer.addresses[0], offer.port), timeout=10)


def wrong(offer: Offer) -> bytes:
    """The introduction of one that knows all but the token."""
    said = heartbeat.introduction("another token", "nonce", "own nonce", 1)
    return json.dumps(said).encode() + b"\n"


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95\xff\xfe\n", b"{}\n", b"[]\n", b"null\n", b"\n",
        b'{"rank": Infinity, "nonce": [], "proof": "\xc3\xa9"}\n', b"[" * 4000 + b"\n",
        b"x" * 10_000, b'{"arrived": 5, "doing": "training"}\n', wrong,
    ],
)  # fmt: skip
def test_whoever_does_not_know_the_token_is_turned_away(chief: ChiefWatch, said: object) -> None:
    with connect(chief.offer) as stranger:
        assert json.loads(stranger.recv(4096)).keys() == {"nonce"}
        stranger.sendall(said(chief.offer) if callable(said) else said)  # type: ignore[arg-type]
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(4096) == b""
    assert_takes_ranks_in(chief)


def test_one_that_says_nothing_or_hangs_up_does_no_harm(chief: ChiefWatch) -> None:
    with connect(chief.offer):
        connect(chief.offer).close()
        assert_takes_ranks_in(chief)


def assert_takes_ranks_in(chief: ChiefWatch) -> None:
    follower = watchdog.follow(1, chief.offer)
    assert follower is not None
    follower.close()


def test_a_rank_that_gave_up_waiting_for_the_chiefs_answer_is_not_a_dead_one(
    chief: ChiefWatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(chief.offer) as given_up:
        nonce = json.loads(given_up.recv(4096))["nonce"]
        said = heartbeat.introduction(chief.offer.token, nonce, "own", 1)
        given_up.sendall(json.dumps(said).encode() + b"\n")
        assert json.loads(given_up.recv(4096)).keys() == {"proof"}
    assert_takes_ranks_in(chief)  # or this process would have ended
    assert capfd.readouterr().err == ""


def test_a_watchdog_that_fails_says_so_and_raises_no_alarm_at_the_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    chief = ChiefWatch(1000, one_host=True)
    with connect(chief.offer) as broken:
        nonce = json.loads(broken.recv(4096))["nonce"]
        said = heartbeat.introduction(chief.offer.token, nonce, "own", 1)
        broken.sendall(json.dumps(said).encode() + b"\n")
        broken.recv(4096)
        broken.sendall(b'{"arrived": 1}\n')
        with broken.makefile() as lines:
            assert any("bye" in json.loads(line) for line in lines)
            assert capfd.readouterr().err == (
                f"warning: rank 0 on {HOST}: the watchdog failed, KeyError: 'doing'; the run goes "
                "on without it\n"
            )
    chief.close()


def test_a_line_of_which_only_a_part_was_taken_is_ended_before_the_next() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
    ours.setblocking(False)
    theirs.setblocking(False)
    sender, receiver = heartbeat.Connection(ours), heartbeat.Connection(theirs)
    sent = [{"number": number, "text": "x" * (3000 + number % 900)} for number in range(2000)]
    received: list[heartbeat.Message] = []
    for message in sent:
        sender.send(message)
        if message["number"] % 200 == 199:
            for _ in range(20):
                received += receiver.receive()[0]
    with ours, theirs:
        numbers = [message["number"] for message in received]
    assert 0 < len(numbers) < len(sent)
    assert numbers == sorted(set(numbers))
    assert all(len(message["text"]) == 3000 + message["number"] % 900 for message in received)


def test_an_introduction_can_not_be_used_again(chief: ChiefWatch) -> None:
    """Each connection has a nonce of its own."""
    with connect(chief.offer) as first, connect(chief.offer) as second:
        nonce = json.loads(first.recv(4096))["nonce"]
        line = json.dumps(heartbeat.introduction(chief.offer.token, nonce, "own", 1)).encode()
        second.recv(4096)
        second.sendall(line + b"\n")
        assert second.recv(4096) == b""


def test_a_rank_trusts_nobody_who_does_not_know_the_token_nor_tells_it(chief: ChiefWatch) -> None:
    received = b""

    def impostor(listener: socket.socket) -> None:
        nonlocal received
        listener.setblocking(True)
        with listener.accept()[0] as sock:
            sock.sendall(b'{"nonce": "1"}\n')
            received = sock.recv(4096)
            sock.sendall(b'{"proof": "1"}\n')

    with heartbeat.listen(one_host=True) as listener:
        offer = dataclasses.replace(chief.offer, port=listener.getsockname()[1])
        thread = threading.Thread(target=impostor, args=[listener])
        thread.start()
        assert watchdog.follow(1, offer) is None
        thread.join()
    assert json.loads(received)["rank"] == 1
    assert offer.token.encode() not in received


def test_a_port_that_nobody_listens_on_leaves_a_rank_without_a_watchdog(chief: ChiefWatch) -> None:
    with heartbeat.listen(one_host=True) as listener:
        offer = dataclasses.replace(chief.offer, port=listener.getsockname()[1])
    assert watchdog.follow(1, offer) is None


def test_a_rank_finds_the_chief_by_any_of_its_addresses(chief: ChiefWatch) -> None:
    addresses = ["no.such.host.invalid", *chief.offer.addresses]
    offer = dataclasses.replace(chief.offer, host="elsewhere", addresses=addresses)
    follower = watchdog.follow(1, offer)
    assert follower is not None
    follower.close()


def test_over_several_hosts_the_chief_listens_at_the_addresses_that_it_tells() -> None:
    watch = ChiefWatch(1000, one_host=False)
    try:
        assert not any(address.startswith("127.") for address in watch.offer.addresses)
        for _, address in probe.interfaces():
            host = address.partition("/")[0]
            socket.create_connection((host, watch.offer.port), timeout=10).close()
    finally:
        watch.close()
