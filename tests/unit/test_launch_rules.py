"""Where `hvd_train launch` starts ranks, and whom it charges with a failure."""

import socket
from pathlib import Path

import pytest

from data_tools.errors import DataError
from hvd_train import hosts_script, launch
from hvd_train.launch import Attempt, Record


def write_script(folder: Path, text: str) -> Path:
    script = folder / "hosts.sh"
    script.write_text(text)
    script.chmod(0o755)
    return script


def test_the_hosts_are_what_the_script_prints_which_may_be_none(tmp_path: Path) -> None:
    found = hosts_script.read(write_script(tmp_path, "#!/bin/sh\necho host1:4; echo host2.org:2"))
    assert list(found.items()) == [("host1", 4), ("host2.org", 2)]
    assert hosts_script.read(write_script(tmp_path, "#!/bin/sh\ntrue")) == {}


SCRIPTS = {
    "#!/bin/sh\necho no cluster >&2; exit 3": (
        ": it ended with code 3: no cluster; mend the script"
    ),
    "#!/bin/sh\nfalse": ": it ended with code 1: it says nothing; mend the script",
    "#!/bin/sh\nprintf '%200s' | tr ' ' x >&2; exit 1": (
        f": it ended with code 1: {'x' * 80}…; mend the script"
    ),
    "echo host1:2": ": it has no #! line; begin it with #!/bin/sh",
    "#!/nonexist\necho host1:2": (
        ": the interpreter that its #! line names isn't there; begin it with #!/bin/sh, and end "
        "that line without a carriage return"
    ),
    "#!/bin/sh\r\necho host1:2\r\n": (
        ": the interpreter that its #! line names isn't there; begin it with #!/bin/sh, and end "
        "that line without a carriage return"
    ),
    "#!/bin/sh\nsleep 50; echo host1:2": ": it takes more than 0.5 s; let it answer sooner",
    "#!/bin/sh\necho host1:2; printf '%s' --mca:2": (
        ":2: '--mca' is no name of a host; write host slots=4, or host:4"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_hosts_script_that_fails_is_one_line(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_script, "SECONDS", 0.5 if "sleep" in text else 60)
    script = write_script(tmp_path, text)
    with pytest.raises(DataError) as raised:
        hosts_script.read(script)
    assert str(raised.value) == f"error: INPUT: {script}{SCRIPTS[text]}"


def test_what_is_no_script_is_told_with_its_fix(tmp_path: Path) -> None:
    plain = write_script(tmp_path, "#!/bin/sh\necho host1:2")
    plain.chmod(0o644)
    blank = tmp_path / "cat hosts"
    absent = tmp_path / "absent"
    messages = {
        plain: f"INPUT: {plain}: it isn't executable; chmod +x {plain}",
        tmp_path: f"INPUT: {tmp_path}: it is a folder; name the script in it",
        blank: f"CONFIG: --hosts-script: no file is named '{blank}'; it is one program, without "
        "arguments; put the command into a script that begins with #!/bin/sh",
        absent: f"INPUT: {absent}: No such file or directory; check that the path exists and its "
        "permissions",
    }
    for script, message in messages.items():
        with pytest.raises(DataError) as raised:
            hosts_script.read(script)
        assert str(raised.value) == f"error: {message}"


def test_a_program_that_cant_be_started_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "train.sh"
    plain.touch()
    messages = {
        "hvd_trainn": "there is no such program; write one that is on PATH after --, such as "
        "hvd_train, or its path",
        str(tmp_path): "it is a folder; name the program to start",
        str(plain): f"it isn't executable; chmod +x {plain}",
    }
    for program, message in messages.items():
        with pytest.raises(DataError) as raised:
            launch.check_program(program)
        assert str(raised.value) == f"error: CONFIG: {program}: {message}"
    plain.chmod(0o755)
    launch.check_program(str(plain))
    launch.check_program("sh")


@pytest.mark.parametrize(
    ("hosts", "max_np", "running", "placed"),
    [
        ({"a": 2, "b": 4}, None, {}, {"a": 2, "b": 4}),
        ({"a": 2, "b": 4}, 5, {}, {"a": 2, "b": 3}),
        ({"a": 2, "b": 4}, 2, {}, {"a": 2}),
        # The chief stays where it is, however the script orders its lines.
        ({"b": 4, "a": 2}, 4, {"a": 2, "b": 2}, {"a": 2, "b": 2}),
        ({"c": 4, "b": 4}, 4, {"a": 2, "b": 2}, {"b": 4}),
        ({"a": 1}, 4, {"a": 2, "b": 2}, {"a": 1}),
        ({}, 4, {"a": 2}, {}),
    ],
)
def test_ranks_are_placed_first_where_the_run_is(
    hosts: launch.Slots, max_np: int | None, running: launch.Slots, placed: launch.Slots
) -> None:
    found = launch.place(hosts, max_np, running)
    assert list(found.items()) == list(placed.items())


def test_other_hosts_get_no_variable_but_path() -> None:
    command = launch.launcher_command({"a": 2, "b": 1}, ["hvd_train", "cifar"])
    assert command == [
        "mpirun", "-np", "3", "-H", "a:2,b:1", "-x", "PATH", "hvd_train", "cifar", "--resume",
    ]  # fmt: skip


RANK_LINE = "error: RANK: rank 1 on {}: process 7 ended while the others waited for it; look"
CHARGED = [
    (RANK_LINE.format("host2"), "host2"),
    ("[1,0]<stderr>:" + RANK_LINE.format("host2.example.com"), "host2"),
    (RANK_LINE.format("host2"), "host2.example.com"),
    ("error: HOST: versions: rank 3 on host2 has keras = 3, rank 0 has 4; install", "host2"),
    ("error: INTEGRITY: data set: rank 3 on host2 has manifest = a, rank 0 has b; give", "host2"),
    ("ssh: Could not resolve hostname host2: Name or service not known", "host2"),
    ("ssh: connect to host 10.0.0.2 port 22: Connection refused", "10.0.0.2"),
    ("me@host2: Permission denied (publickey).", "host2"),
    ("No ED25519 host key is known for host2 and you have requested strict checking.", "host2"),
    ("Host key for host2 has changed and you have requested strict checking.", "host2"),
    ("  Remote daemon: [[11,0],1] on node host2", "host2"),
    ("mpirun noticed that process rank 1 with PID 0 on node host2 exited on signal 9.", "host2"),
    (RANK_LINE.format(socket.gethostname()), "localhost"),
]


@pytest.mark.parametrize(("line", "host"), CHARGED)
def test_a_failure_is_charged_to_the_host_that_a_line_names(line: str, host: str) -> None:
    assert launch.blames(line, host)
    for other in ("host", "host22", "my-host2", "0.0.0.2", "10.0.0.22"):
        assert not launch.blames(line, other)


@pytest.mark.parametrize(
    "fault",
    [
        "HOST: host2:/d: no data set there; the chief's host has one; copy it from there",
        "INTEGRITY: host2:/d/cifar10-train.tfrecord-00000-of-00004: SHA-256 differs; copy it",
        "CONFIG: host2.example.com: 3 ranks, but rank 2 sees 2 GPUs; start fewer",
    ],
)
def test_a_fault_of_one_host_is_charged_to_it_unless_it_is_the_chiefs(fault: str) -> None:
    for hosts, blamed in ((("a", "host2"), {"host2"}), (("host2", "a"), set())):
        attempt = Attempt(hosts=dict.fromkeys(hosts, 1))
        attempt.hear(f"[1,1]<stderr>:error: {fault}")
        assert attempt.blamed == blamed


@pytest.mark.parametrize(
    "line",
    [
        "warning: rank 1 on host2 can't reach port 99 of host1: nobody will notice if it freezes",
        "  HNP daemon   : [[11,0],0] on node host2",
        "step 10, loss = 4.61 on host2",
        "error: CONFIG: runs/host2: the run folder exists already; choose another --name",
    ],
)
def test_a_line_that_only_mentions_a_host_charges_nobody(line: str) -> None:
    assert not launch.blames(line, "host2")


def failed(record: Record, *lines: str, hosts: tuple[str, ...] = ("a", "b")) -> None:
    attempt = Attempt(hosts=dict.fromkeys(hosts, 1))
    for line in lines:
        attempt.hear(line)
    record.failed(attempt)


def test_a_host_is_out_after_three_failures_until_the_script_drops_it() -> None:
    record, hosts = Record(), {"a": 1, "b": 1}
    for _ in range(2):
        failed(record, RANK_LINE.format("b"), "Remote daemon: [[11,0],1] on node b")
    assert record.usable(hosts) == hosts
    record.progress(10)  # which doesn't mend a host
    failed(record, RANK_LINE.format("b"))
    assert record.usable(hosts) == {"a": 1}
    assert record.usable({"a": 1}) == {"a": 1}
    assert record.usable(hosts) == hosts


def test_a_run_on_one_host_never_leaves_it_out() -> None:
    record = Record()
    for _ in range(5):
        failed(record, RANK_LINE.format("a"), hosts=("a",))
    assert record.usable({"a": 1}) == {"a": 1}
    assert record.failures == 5


def test_only_a_later_checkpoint_is_progress() -> None:
    record = Record(step=20, failures=2)
    record.progress(20)
    record.progress(10)
    assert record.failures == 2
    record.progress(21)
    assert (record.step, record.failures) == (21, 0)
