"""Downloads from a real HTTPS server in a thread, which does what servers and networks do wrong.

Nothing of the network is mocked: SSL_CERT_FILE makes Python trust the key of localhost.pem.
"""

import gzip
import hashlib
import importlib.util
import io
import os
import pty
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from small_captchas import Ran, files_of

from data_tools import download, manifest
from data_tools.archive import Archive
from data_tools.errors import DataError
from data_tools.whole_folder import MARK

Tools = Callable[..., Ran]
Member = tuple[str, bytes, bytes]
PEM = Path(__file__).with_name("localhost.pem")
RANDOM = random.Random(0)
FILES = {
    "data_batch_1.bin": RANDOM.randbytes(300_000),
    "test_batch.bin": RANDOM.randbytes(100_000),
    "batches.meta.txt": b"airplane\nautomobile\n",
    "readme.html": b"<p>CIFAR</p>",
}
ANEW = "nothing was unpacked; run it again to start anew, or pass --url of another mirror"
ELSEWHERE = (
    "download it elsewhere, unpack it and pass the folder to data_tools cifar-to-tfrecord, "
    "or pass --url of a mirror"
)


def tar_gz(*members: Member) -> bytes:
    """An archive of (name, type, content) in the order given; content is a link's target."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = content.decode()
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


TOP: Member = ("cifar", tarfile.DIRTYPE, b"")
GOOD: Member = ("cifar/good.bin", tarfile.REGTYPE, RANDOM.randbytes(5_000))
BODY = tar_gz(
    TOP, *((f"cifar/{name}", tarfile.REGTYPE, content) for name, content in FILES.items())
)
SIZE = len(BODY)
HALF = SIZE // 2


# The server and its answers


class Handler(BaseHTTPRequestHandler):
    server: "Mirror"

    def do_GET(self) -> None:
        number = len(self.server.ranges)
        self.server.ranges.append(self.headers["Range"])
        self.server.answers[min(number, len(self.server.answers) - 1)](self)

    def log_message(self, *_: object) -> None:
        pass

    def begin(self, status: int, headers: dict[str, object]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def begin_range(self) -> bytes:
        """Sends the headers for the range that is asked for and returns its bytes."""
        body = self.server.body
        start = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "bytes=0-")[1])
        headers: dict[str, object] = {"Content-Length": len(body) - start}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        self.begin(206 if start else 200, headers)
        return body[start:]


Answer = Callable[[Handler], None]


def honest(handler: Handler) -> None:
    handler.wfile.write(handler.begin_range())


def cut_at(stop: int) -> Answer:
    """Tells the right length, but ends the connection after byte `stop` of the archive."""

    def answer(handler: Handler) -> None:
        data = handler.begin_range()
        handler.wfile.write(data[: max(0, stop - SIZE + len(data))])

    return answer


def held_at(stop: int) -> Answer:
    """Sends up to byte `stop` of the archive, and the rest when the test says `go_on`."""

    def answer(handler: Handler) -> None:
        data = handler.begin_range()
        split = max(0, stop - SIZE + len(data))
        handler.wfile.write(data[:split])
        handler.server.go_on.wait()
        handler.wfile.write(data[split:])

    return answer


def send(data: bytes, status: int = 200, **headers: object) -> Answer:
    """Sends these bytes whatever is asked for; `_` in a header's name stands for `-`."""

    def answer(handler: Handler) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        handler.begin(status, {"Content-Length": len(data)} | named)
        handler.wfile.write(data)

    return answer


def endless(handler: Handler) -> None:
    handler.begin(200, {})
    handler.wfile.write(handler.server.body)
    try:
        while True:
            handler.wfile.write(bytes(100_000))
    except OSError:
        handler.server.was_cut_off.set()


class Mirror(ThreadingHTTPServer):
    """A server of one archive.

    Attributes:
        body: the archive.
        answers: to the first, second, ... GET; the last one to all that follow.
        ranges: the Range header of each GET that came, None where there was none.
        go_on: what `held_at` waits for.
        was_cut_off: set when the client has ended an endless answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PEM)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server_port}/cifar.tar.gz"
        self.body = BODY
        self.answers: list[Answer] = [honest]
        self.ranges: list[str | None] = []
        self.go_on = threading.Event()
        self.was_cut_off = threading.Event()

    @property
    def archive(self) -> Archive:
        return Archive(self.url, len(self.body), hashlib.sha256(self.body).hexdigest())

    def handle_error(self, *_: object) -> None:
        """Says nothing of a connection that the client has ended."""


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of this machine, the tests' certificate, and no pause before another try."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with Mirror() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the files shall be; alone in its folder."""
    (tmp_path / "datasets").mkdir()
    return tmp_path / "datasets" / "cifar"


def part_of(out: Path) -> Path:
    return out.with_name("cifar.tar.gz.part")


def beside(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir())


def refusal(archive: Archive, out: Path) -> str:
    with pytest.raises(DataError) as caught:
        download.fetch_archive(archive, out)
    return caught.value.report()


# Other processes

SCRIPT = """
import signal, sys
from pathlib import Path
from data_tools import download, errors
signal.signal(signal.SIGINT, signal.default_int_handler)
url, size, sha256, out = sys.argv[1:]
archive = download.Archive(url, int(size), sha256)
sys.exit(errors.run_main(lambda: download.fetch_archive(archive, Path(out))))
"""


def command(archive: Archive, out: Path) -> list[str]:
    return [sys.executable, "-c", SCRIPT, archive.url, str(archive.size), archive.sha256, str(out)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`start(archive, out)` downloads in another process, which writes to output.txt."""
    started = []
    with (tmp_path / "output.txt").open("ab") as output:

        def run(archive: Archive, out: Path) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(command(archive, out), stdout=output, stderr=output)
            started.append(process)
            return process

        yield run
        for process in started:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for doesn't happen"
        time.sleep(0.01)


def has_bytes(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


# What is right


def test_the_files_of_the_archives_folder_are_made_and_nothing_else(
    mirror: Mirror, out: Path
) -> None:
    download.fetch_archive(mirror.archive, out)
    assert files_of(out) == FILES
    assert beside(out) == ["cifar"]
    assert mirror.ranges == [None]


def test_the_command_says_what_it_downloads_and_what_it_made(
    mirror: Mirror, out: Path, data_tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(download.ARCHIVES, "cifar10", mirror.archive)
    ran = data_tools("download", "cifar10", out)
    assert (ran.rc, ran.stderr) == (0, "")
    assert re.sub(r"after \d+\.\d s", "after T s", ran.stdout) == (
        f"{mirror.url}: downloading {SIZE} bytes\n"
        f"{mirror.url}: {SIZE} bytes are there, after T s\n"
        f"{out}: cifar10, 4 files\n"
    )


def test_url_names_a_mirror_that_must_serve_the_same_bytes(
    mirror: Mirror, out: Path, data_tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = mirror.archive.sha256
    monkeypatch.setitem(download.ARCHIVES, "cifar100", Archive("https://a.invalid/x", SIZE, digest))
    assert data_tools("download", "cifar100", out, "--url", mirror.url).rc == 0
    assert files_of(out) == FILES


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_sizes_and_hashes_are_those_of_tensorflow_datasets(name: str) -> None:
    spec = importlib.util.find_spec("tensorflow_datasets")
    if spec is None or spec.origin is None:
        pytest.skip("needs tensorflow_datasets")
    checksums = Path(spec.origin).parent / "url_checksums" / f"{name}.txt"
    url, size, sha256, *_ = checksums.read_text().split()
    assert download.ARCHIVES[name] == Archive(url, int(size), sha256)


def test_a_missing_parent_is_made(mirror: Mirror, out: Path) -> None:
    download.fetch_archive(mirror.archive, out / "deep" / "cifar")
    assert files_of(out / "deep" / "cifar") == FILES


def test_a_terminal_shows_a_bar(mirror: Mirror, out: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            command(mirror.archive, out), stdout=theirs, env={**os.environ, "TERM": "xterm"}
        )
        os.close(theirs)
        shown = b""
        try:
            while data := screen.read(1 << 16):
                shown += data
        except OSError:  # how the end of a terminal reads on Linux
            pass
        assert process.wait() == 0
    assert "━".encode() in shown
    assert b"0.0 of 0.4 MB" in shown


# Going on


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_download_stopped_at_half_is_gone_on_with(
    mirror: Mirror, out: Path, start: Callable[..., subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    mirror.answers = [held_at(HALF), honest]
    process = start(mirror.archive, out)
    wait_for(lambda: has_bytes(part_of(out), HALF))
    process.send_signal(number)
    assert process.wait() == (130 if number == signal.SIGINT else -number)
    assert beside(out) == ["cifar.tar.gz.part"]
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == [None, f"bytes={HALF}-"]
    assert files_of(out) == FILES
    assert beside(out) == ["cifar"]


def test_an_archive_that_is_there_but_not_unpacked_isnt_asked_for(
    mirror: Mirror, out: Path
) -> None:
    part_of(out).write_bytes(BODY)
    out.with_name("cifar.incomplete").mkdir()  # of a process killed while it unpacked
    for name in (MARK, "half.bin"):
        (out.with_name("cifar.incomplete") / name).write_bytes(b"x")
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == []
    assert files_of(out) == FILES
    assert beside(out) == ["cifar"]


def test_a_cut_connection_is_gone_on_with(
    mirror: Mirror, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.answers = [cut_at(HALF), cut_at(HALF + 1000), honest]
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == [None, f"bytes={HALF}-", f"bytes={HALF + 1000}-"]
    assert files_of(out) == FILES
    assert capsys.readouterr().out.splitlines()[1:3] == [
        f"{mirror.url}: the connection ended at byte {HALF} of {SIZE}; trying again",
        f"{mirror.url}: the connection ended at byte {HALF + 1000} of {SIZE}; trying again",
    ]


def test_a_stalled_connection_is_gone_on_with(
    mirror: Mirror, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(download, "STALL_SECONDS", 1.0)
    mirror.answers = [held_at(HALF), honest]
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == [None, f"bytes={HALF}-"]
    assert files_of(out) == FILES
    line = f"{mirror.url}: no byte came for 1 s at byte {HALF} of {SIZE}; trying again"
    assert line in capsys.readouterr().out.splitlines()


def test_a_connection_that_is_cut_each_time_is_input_after_three_retries_and_keeps_the_bytes(
    mirror: Mirror, out: Path
) -> None:
    stop = SIZE * 8 // 10
    mirror.answers = [cut_at(stop)]
    assert refusal(mirror.archive, out) == (
        f"error: INPUT: {mirror.url}: the connection ended at byte {stop} of {SIZE}; "
        f"run it again to go on from byte {stop}, or pass --url of a mirror"
    )
    assert mirror.ranges == [None, *[f"bytes={stop}-"] * 3]
    assert part_of(out).read_bytes() == BODY[:stop]
    assert beside(out) == ["cifar.tar.gz.part"]


def test_a_busy_server_is_asked_again(mirror: Mirror, out: Path) -> None:
    mirror.answers = [send(b"busy", 503), send(b"slow down", 429), honest]
    download.fetch_archive(mirror.archive, out)
    assert files_of(out) == FILES


def test_a_server_that_ignores_ranges_begins_at_0(mirror: Mirror, out: Path) -> None:
    part_of(out).write_bytes(BODY[:1000])
    mirror.answers = [send(BODY)]
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == ["bytes=1000-"]
    assert files_of(out) == FILES


@pytest.mark.parametrize(
    "answer",
    [
        send(b"", 416),
        send(b"", 416, Content_Range=f"bytes */{SIZE}"),
        send(BODY[1000:], 206),
        send(BODY[1000:], 206, Content_Range=f"bytes 999-{SIZE - 1}/{SIZE}"),
        send(BODY[1000:], 206, Content_Range=f"bytes 1000-{SIZE}/{SIZE + 1}"),
        send(BODY[1000:], 206, Content_Range="nonsense"),
    ],
    ids=["416", "416 with the size", "none", "from another byte", "of another size", "nonsense"],
)
def test_a_wrong_answer_to_a_range_makes_it_begin_at_0(
    mirror: Mirror, out: Path, answer: Answer
) -> None:
    part_of(out).write_bytes(BODY[:1000])
    mirror.answers = [answer, honest]
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == ["bytes=1000-", None]
    assert files_of(out) == FILES


def test_a_length_too_long_harms_nothing_when_the_bytes_are_right(
    mirror: Mirror, out: Path
) -> None:
    mirror.answers = [send(BODY, Content_Length=SIZE + 1000)]
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == [None]
    assert files_of(out) == FILES


def test_a_server_that_tells_no_length_sends_chunks(mirror: Mirror, out: Path) -> None:
    chunks = [BODY[:HALF], BODY[HALF:], b""]
    data = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    mirror.answers = [send(data, Transfer_Encoding="chunked")]
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == [None]
    assert files_of(out) == FILES


# Wrong bytes


def came(data: bytes) -> str:
    return f"{len(data)} bytes with SHA-256 {hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize(
    "data",
    [BODY[: SIZE * 8 // 10], BODY[:-1], b"", BODY[:-1] + b"x", b"x" * SIZE],
    ids=["cut at 80 %", "one byte less", "empty", "another last byte", "all others"],
)
def test_other_bytes_are_integrity_with_size_and_hash_and_nothing_is_left(
    mirror: Mirror, out: Path, data: bytes
) -> None:
    mirror.answers = [send(data), honest]
    assert refusal(mirror.archive, out) == (
        f"error: INTEGRITY: {mirror.url}: {came(data)} came; the archive has {came(BODY)}; {ANEW}"
    )
    assert beside(out) == []
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == [None, None]
    assert files_of(out) == FILES


def test_wrong_bytes_of_an_earlier_run_are_integrity_and_the_next_run_starts_anew(
    mirror: Mirror, out: Path
) -> None:
    part_of(out).write_bytes(b"x" * 1000)
    wrong = b"x" * 1000 + BODY[1000:]
    assert refusal(mirror.archive, out) == (
        f"error: INTEGRITY: {mirror.url}: {came(wrong)} came; the archive has {came(BODY)}; {ANEW}"
    )
    assert beside(out) == []
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == ["bytes=1000-", None]


@pytest.mark.parametrize("more", [endless, send(BODY + b"x")], ids=["endless", "one byte"])
def test_more_bytes_than_the_archive_has_are_cut_off_and_nothing_is_left(
    mirror: Mirror, out: Path, more: Answer
) -> None:
    mirror.answers = [more]
    assert refusal(mirror.archive, out) == (
        f"error: INTEGRITY: {mirror.url}: "
        f"more comes than the {SIZE} bytes that the archive has; {ANEW}"
    )
    assert beside(out) == []
    assert mirror.ranges == [None]
    assert more is not endless or mirror.was_cut_off.wait(60)


# No way there


def test_no_network_is_input_at_once_and_says_what_else_can_be_done(out: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    url = f"https://127.0.0.1:{port}/cifar.tar.gz"
    assert refusal(Archive(url, SIZE, "0" * 64), out) == (
        f"error: INPUT: {url}: Connection refused; {ELSEWHERE}"
    )
    assert beside(out) == []
    part_of(out).write_bytes(BODY[:1000])
    assert refusal(Archive(url, SIZE, "0" * 64), out) == (
        f"error: INPUT: {url}: Connection refused; {ELSEWHERE}; "
        "run again, it goes on from byte 1000"
    )
    assert part_of(out).read_bytes() == BODY[:1000]


def test_a_name_that_doesnt_resolve_is_input_at_once(out: Path) -> None:
    ran = subprocess.run(
        command(Archive("https://no.invalid/x", SIZE, "0" * 64), out), capture_output=True,
        text=True, check=False, env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"},
    )  # fmt: skip
    assert ran.returncode == 3
    assert ran.stdout == f"https://no.invalid/x: downloading {SIZE} bytes\n"
    line = rf"error: INPUT: https://no\.invalid/x: [^:;]+; {re.escape(ELSEWHERE)}\n"
    assert re.fullmatch(line, ran.stderr)
    assert beside(out) == []


def test_a_missing_file_is_input_at_once(mirror: Mirror, out: Path) -> None:
    mirror.answers = [send(b"no", 404)]
    assert refusal(mirror.archive, out) == (
        f"error: INPUT: {mirror.url}: the server answers 404 Not Found; {ELSEWHERE}"
    )
    assert mirror.ranges == [None]


def test_a_certificate_that_isnt_trusted_is_input_at_once(
    mirror: Mirror, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    assert refusal(mirror.archive, out).replace("self signed", "self-signed") == (
        f"error: INPUT: {mirror.url}: its certificate isn't trusted: self-signed certificate; "
        "install the system's CA certificates (ca-certificates) and check the clock"
    )
    assert mirror.ranges == []


def test_the_proxy_of_https_proxy_is_asked(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        asked = []

        def refuse() -> None:
            connection, _ = proxy.accept()
            with connection:
                asked.append(connection.recv(4096).split(b"\r\n")[0])
                connection.sendall(b"HTTP/1.0 403 Forbidden\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        assert refusal(Archive("https://a.invalid/x", SIZE, "0" * 64), out) == (
            "error: INPUT: https://a.invalid/x: Tunnel connection failed: 403 Forbidden; "
            + ELSEWHERE
        )
        thread.join()
    assert re.fullmatch(rb"CONNECT a\.invalid:443 HTTP/1\.[01]", asked[0])


# HTTPS only


@pytest.mark.parametrize(
    "url", ["http://a.invalid/x", "file:///etc/passwd", "ftp://a.invalid/x", "cifar.tar.gz", ""]
)
def test_anything_but_https_is_config(url: str, data_tools: Tools, out: Path) -> None:
    ran = data_tools("download", "cifar10", out, "--url", url)
    assert ran.rc == 2
    assert ran.stderr == (
        f"error: CONFIG: --url: {url!r} doesn't begin with https://; pass a mirror with HTTPS\n"
    )
    assert beside(out) == []


@pytest.mark.parametrize("host", ["a b", "localhost:port", "a..b", "a" * 64])
def test_a_url_that_is_none_is_config(host: str, out: Path) -> None:
    url = f"https://{host}/x"
    assert refusal(Archive(url, SIZE, "0" * 64), out) == (
        f"error: CONFIG: {url}: not a valid URL; pass another --url"
    )
    assert beside(out) == []


def test_a_redirect_to_http_is_refused_and_not_followed(mirror: Mirror, out: Path) -> None:
    target = mirror.url.replace("https", "http")
    mirror.answers = [send(b"", 302, Location=target)]
    assert refusal(mirror.archive, out) == (
        f"error: INPUT: {mirror.url}: it redirects to {target}, which isn't HTTPS; "
        "pass --url of another mirror"
    )
    assert mirror.ranges == [None]
    assert beside(out) == []


def test_a_redirect_to_https_is_followed_and_keeps_the_range(mirror: Mirror, out: Path) -> None:
    part_of(out).write_bytes(BODY[:1000])
    mirror.answers = [send(b"", 302, Location="/other"), honest]
    download.fetch_archive(mirror.archive, out)
    assert mirror.ranges == ["bytes=1000-", "bytes=1000-"]
    assert files_of(out) == FILES


# Several processes


def test_four_processes_at_once_download_once(
    mirror: Mirror, out: Path, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    mirror.answers = [held_at(HALF)]
    processes = [start(mirror.archive, out) for _ in range(4)]
    output = tmp_path / "output.txt"
    waiting = f"{part_of(out)}: another process is at it; waiting for it to end\n"
    wait_for(lambda: output.read_text().count(waiting) == 3)
    mirror.go_on.set()
    assert [process.wait() for process in processes] == [0] * 4
    assert mirror.ranges == [None]
    assert files_of(out) == FILES
    assert beside(out) == ["cifar"]


MAKE_SCRIPT = """
import sys
from pathlib import Path
from data_tools import datasets, download, errors
url, size, sha256, out = sys.argv[1:]
download.ARCHIVES["cifar10"] = download.Archive(url, int(size), sha256)
sys.exit(errors.run_main(lambda: datasets.make_cifar10(Path(out))))
"""


def test_four_ranks_of_a_host_download_and_convert_once(mirror: Mirror, tmp_path: Path) -> None:
    records = np.random.default_rng(0).integers(0, 10, 3073 * 7, np.uint8).tobytes()
    members = [
        (f"cifar/{name}.bin", tarfile.REGTYPE, records) for name in ("data_batch_1", "test_batch")
    ]
    mirror.body = tar_gz(TOP, *members)
    archive = mirror.archive
    out = tmp_path / "datasets" / "cifar10"
    arguments = [archive.url, str(archive.size), archive.sha256, str(out)]
    processes = [
        subprocess.Popen([sys.executable, "-c", MAKE_SCRIPT, *arguments]) for _ in range(4)
    ]
    assert [process.wait() for process in processes] == [0] * 4
    assert mirror.ranges == [None]
    assert beside(out) == [".cifar10.lock", "cifar-10-binary", "cifar10"]
    assert manifest.load(out).splits["train"].examples == 7


def test_the_one_that_waits_goes_on_when_the_one_that_downloads_is_killed(
    mirror: Mirror, out: Path, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    mirror.answers = [held_at(HALF), honest]
    first = start(mirror.archive, out)
    wait_for(lambda: has_bytes(part_of(out), HALF))
    second = start(mirror.archive, out)
    wait_for(lambda: "another process is at it" in (tmp_path / "output.txt").read_text())
    first.kill()
    assert second.wait() == 0
    assert mirror.ranges == [None, f"bytes={HALF}-"]
    assert files_of(out) == FILES


def test_the_one_that_waits_starts_anew_when_the_one_that_downloads_got_wrong_bytes(
    mirror: Mirror, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = []

    def honest_while_watched(handler: Handler) -> None:
        there.append(beside(out))
        honest(handler)

    archive = mirror.archive
    mirror.body = b"x" * SIZE
    mirror.answers = [held_at(HALF), honest_while_watched]
    printed = ""

    def waits() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "another process is at it" in printed

    with ThreadPoolExecutor() as threads:  # between which flock is as between processes
        first = threads.submit(download.fetch_archive, archive, out)
        wait_for(lambda: has_bytes(part_of(out), HALF))
        second = threads.submit(download.fetch_archive, archive, out)
        wait_for(waits)
        mirror.body = BODY
        mirror.go_on.set()
        assert isinstance(first.exception(), DataError)
        assert second.exception() is None
    assert mirror.ranges == [None, None]
    assert there == [["cifar.tar.gz.part"]]
    assert files_of(out) == FILES
    assert beside(out) == ["cifar"]


# The folder


def test_an_existing_folder_is_config_for_the_command_and_enough_for_fetch(
    mirror: Mirror, out: Path, data_tools: Tools
) -> None:
    out.mkdir()
    (out / "precious").write_text("work")
    ran = data_tools("download", "cifar10", out, "--url", mirror.url)
    assert ran.rc == 2
    assert ran.stderr == f"error: CONFIG: {out}: it exists already; choose another folder\n"
    download.fetch("cifar10", out, url=mirror.url)
    assert files_of(out) == {"precious": b"work"}
    assert mirror.ranges == []
    assert beside(out) == ["cifar"]


def test_a_file_in_the_place_of_the_folder_is_config(mirror: Mirror, out: Path) -> None:
    out.write_text("work")
    assert refusal(mirror.archive, out) == (
        f"error: CONFIG: {out}: it is a file; choose another folder"
    )
    assert mirror.ranges == []


def test_a_link_in_the_place_of_the_partial_file_isnt_followed(mirror: Mirror, out: Path) -> None:
    precious = out.parent / "precious"
    precious.write_text("work")
    part_of(out).symlink_to(precious)
    assert refusal(mirror.archive, out) == (
        f"error: INPUT: {part_of(out)}: Too many levels of symbolic links; "
        "check that the path exists and its permissions"
    )
    assert precious.read_text() == "work"


@pytest.mark.parametrize(
    ("kilobytes", "kept"), [(64, 65536), (600, SIZE)], ids=["downloading", "unpacking"]
)
def test_a_full_disk_is_space_and_keeps_what_came(
    mirror: Mirror, out: Path, kilobytes: int, kept: int
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to mount a tmpfs")
    script = 'mount -t tmpfs -o "$1" tmpfs "$2" || exit 99; dir=$2; shift 2; "$@"; code=$?'
    script += '; cd "$dir" && find . -type f -printf "%f %s\\n"; exit $code'
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", f"size={kilobytes}k", out.parent,
         *command(mirror.archive, out)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode == 99 or "unshare failed" in ran.stderr:
        pytest.skip(f"no tmpfs can be mounted here: {ran.stderr.strip()}")
    assert ran.stderr == (
        f"error: SPACE: {part_of(out) if kept < SIZE else out}: No space left on device; "
        "free some space or choose another folder\n"
    )
    assert ran.returncode == 5
    assert ran.stdout.splitlines()[-1] == f"cifar.tar.gz.part {kept}"
    assert ran.stdout.count(".part") == 1
    assert ".bin" not in ran.stdout
    assert mirror.ranges == [None]


# Hostile archives: the hash is right


REG = tarfile.REGTYPE
OUTSIDE = "it would be outside of the folder"
IRREGULAR = "it is no regular file"
ELSEWHERE_INSIDE = "it isn't in the archive's one folder"


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (("../evil", REG, b"x"), OUTSIDE),
        (("/tmp/evil", REG, b"x"), OUTSIDE),
        (("/evil", REG, b"x"), OUTSIDE),
        (("cifar/../evil", REG, b"x"), OUTSIDE),
        (("cifar/..", REG, b"x"), OUTSIDE),
        (("cifar/evil", tarfile.SYMTYPE, b"/etc/passwd"), IRREGULAR),
        (("cifar/evil", tarfile.SYMTYPE, b"good.bin"), IRREGULAR),
        (("cifar/evil", tarfile.LNKTYPE, b"cifar/good.bin"), IRREGULAR),
        (("cifar/evil", tarfile.CHRTYPE, b""), IRREGULAR),
        (("cifar/evil", tarfile.BLKTYPE, b""), IRREGULAR),
        (("cifar/evil", tarfile.FIFOTYPE, b""), IRREGULAR),
        (("cifar/evil", tarfile.DIRTYPE, b""), IRREGULAR),
        (("cifar", tarfile.SYMTYPE, b"/tmp"), IRREGULAR),
        (("cifar", REG, b"x"), ELSEWHERE_INSIDE),
        (("evil", REG, b"x"), ELSEWHERE_INSIDE),
        (("other/evil", REG, b"x"), ELSEWHERE_INSIDE),
        (("cifar/deep/evil", REG, b"x"), ELSEWHERE_INSIDE),
        (("cifar/good.bin", REG, b"x"), "it is there twice"),
        (("./cifar//good.bin", REG, b"x"), "it is there twice"),
        (
            ("cifar/evil", REG, bytes(1_000_000)),
            "the files have more than 4 times the bytes of the archive",
        ),
    ],
    ids=lambda value: f"{value[0]} {value[1].decode()}" if isinstance(value, tuple) else "",
)
def test_a_member_that_is_no_plain_file_of_the_folder_is_integrity_and_nothing_is_left(
    mirror: Mirror, out: Path, member: Member, reason: str
) -> None:
    mirror.body = tar_gz(TOP, GOOD, member)
    assert refusal(mirror.archive, out) == (
        f"error: INTEGRITY: {mirror.url}:{member[0]}: {reason}; {ANEW}"
    )
    assert beside(out) == []
    assert not Path("/tmp/evil").exists()
    assert not (out.parent.parent / "evil").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "../..", "evil", "a/b/evil"])
def test_a_first_member_outside_of_a_folder_doesnt_make_that_the_archives_folder(
    mirror: Mirror, out: Path, name: str
) -> None:
    mirror.body = tar_gz((name, REG, b"x"))
    reason = OUTSIDE if "." in name or name.startswith("/") else ELSEWHERE_INSIDE
    assert refusal(mirror.archive, out) == (
        f"error: INTEGRITY: {mirror.url}:{name}: {reason}; {ANEW}"
    )
    assert beside(out) == []


@pytest.mark.parametrize(
    "body",
    [b"no gzip at all", gzip.compress(b"no tar"), BODY[:HALF]],
    ids=["no gzip", "no tar", "half"],
)
def test_a_broken_archive_is_integrity_and_nothing_is_left(
    mirror: Mirror, out: Path, body: bytes
) -> None:
    mirror.body = body
    assert refusal(mirror.archive, out) == (
        f"error: INTEGRITY: {mirror.url}: not a whole .tar.gz; {ANEW}"
    )
    assert beside(out) == []
