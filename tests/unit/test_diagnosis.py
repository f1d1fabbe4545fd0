"""What `hvd_train doctor` makes of words and facts, without hosts or launchers."""

import ast
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import build_horovod
import pytest

from data_tools.errors import HOST, DataError
from hvd_train import diagnosis, doctor, launch, launch_command, over_ssh, probe, rank_report
from hvd_train.diagnosis import Network, Report
from hvd_train.flags import Doctor

LOAD = {"tensorflow": "2.21.0", "horovod": "0.28.1", "gpus": 0, "mpi": True}


def report(
    where: str,
    *interfaces: str,
    slots: int = 1,
    host: str = "",
    load: dict[str, Any] | None = None,
    **facts: Any,
) -> Report:
    """A host without a fault but for what is given; interfaces as "eth0 10.0.0.1/24"."""
    return Report(
        where=where, slots=slots, load={**LOAD, **(load or {})},
        facts={
            "host": host or where, "python": "3.11.7", "missing": [], "code": "c", "cores": [4, 8],
            "interfaces": [interface.split() for interface in interfaces], "data": None,
            "free": {"/tmp": 10**9}, "port": 1, **facts,
        },
    )  # fmt: skip


def lines(reports: Sequence[Report]) -> list[str]:
    return [str(fault) for fault in diagnosis.diagnose(reports, "data")]


def test_ranks_above_the_gpus_of_a_host_are_a_fault_whatever_its_cores() -> None:
    assert lines([report("a", slots=3, load={"gpus": 2}), report("b", slots=4)]) == [
        "error: CONFIG: a: 3 slots but 2 GPUs; give it at most 2, as in -H a:2"
    ]


def test_ranks_above_the_cores_that_they_share_are_a_fault() -> None:
    fault = "error: CONFIG: a: 8 slots but 4 cores; give it at most 4, as in -H a:4"
    assert lines([report("a", slots=8, cores=[4, 8])]) == [fault]
    assert lines(ranks([[0, 1, 2, 3]] * 8)) == [fault]


def ranks(
    masks: Sequence[list[int]], *, gpus: int = 0, reported: int | None = None
) -> list[Report]:
    """The ranks of a host, by the cores that each may use, as far as they have reported."""
    made = [
        report("a", slots=len(masks), cores=[len(mask), 8], mask=mask, load={"gpus": gpus})
        for mask in masks
    ]
    return [replace(made[rank], rank=rank) for rank in range(len(made))][:reported]


def test_ranks_with_cores_or_gpus_of_their_own_have_them_together() -> None:
    own = [[0], [1], [2], [3]]
    assert lines(ranks(own)) == []
    assert lines(ranks(own, reported=1)) == []
    assert lines(ranks(own, gpus=1)) == []
    assert lines(ranks([[0], [1], [1], [0]])) == [
        "error: CONFIG: a: 4 slots but 2 cores; give it at most 2, as in -H a:2"
    ]


def test_a_data_set_that_no_host_has_is_one_fault_with_no_copy_advised() -> None:
    absent = {"error": "No such file: 'data/manifest.json'"}
    assert lines([report("a", data=absent), report("b", data=absent)]) == [
        "error: CONFIG: data: no data set there on a, b: No such file: 'data/manifest.json'; "
        "correct --data, or convert one: data_tools --help"
    ]


def test_why_a_data_set_is_not_read_is_said_without_pythons_own_words(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder, reason in (
        (tmp_path / "absent", f"no folder {tmp_path}/absent"),
        (file, f"no folder {file}"),
        (tmp_path, f"no manifest.json in {tmp_path}"),
        (Path("/" + 300 * "a"), f"/{300 * 'a'}/manifest.json: File name too long"),
    ):
        assert probe.data_set(str(folder)) == {"error": reason}


def test_a_data_set_is_copied_from_a_host_that_has_it_by_a_command_that_can_be_pasted() -> None:
    found = {"digest": "d", "wrong": []}
    reports = [report("a", data={"error": "none"}), report("b", data=found)]
    assert [str(fault) for fault in diagnosis.data_faults(reports, "/my data")] == [
        "error: HOST: a: none; copy the data set to the same path there, from b: "
        "rsync -a '/my data/' 'a:/my data'"
    ]


def test_a_host_that_only_starts_the_others_needs_neither_data_nor_tensorflow() -> None:
    starter = report("a", slots=0, load={"error": "none"}, data={"error": "none"}, free={"/": 0})
    assert lines([starter, report("b")]) == []


def test_one_fault_of_two_ranks_of_a_host_is_one_line() -> None:
    assert len(lines([report("a", free={"/tmp": 0}), report("a", free={"/tmp": 0})])) == 1


def test_hosts_of_one_name_are_named() -> None:
    assert lines([report("a", host="node"), report("b", host="node"), report("c")]) == [
        "error: HOST: a, b: the host name of each is node; "
        "give each its own, hostnamectl hostname NAME, and name none twice"
    ]


def test_other_code_of_the_project_is_named() -> None:
    assert lines([report("a"), report("b", code="d")]) == [
        "error: HOST: b: the project's code differs from that of a; "
        "bring both to the same commit, or copy the project again"
    ]


def reaching(first: Report, second: Report, *failing: str) -> list[Report]:
    """Two hosts that reach each other by all addresses but those."""

    def way(a: Report, b: Report) -> Report:
        addresses = [str(address.ip) for _, address in b.interfaces]
        tried = {address: "timed out" if address in failing else "" for address in addresses}
        return Report(
            where=a.where, slots=a.slots, facts=a.facts, load=a.load, reached={b.where: tried}
        )

    return [way(first, second), way(second, first)]


DOCKER = "docker0 172.17.0.1/16"


def test_the_network_to_name_is_the_one_that_all_reach() -> None:
    a = report("a", DOCKER, "eth0 10.0.0.1/24", "ib0 10.1.0.1/24")
    b = report("b", DOCKER, "ens3 10.0.0.2/24", "ib0 10.1.0.2/24")
    network = Network("10.0.0.0/24", ("eth0", "ens3"), ("10.0.0.1", "10.0.0.2"))
    assert diagnosis.common_networks([a, b])[0] == network
    assert diagnosis.network_to_name(reaching(a, b, "172.17.0.1")) == network
    second = diagnosis.network_to_name(reaching(a, b, "172.17.0.1", "10.0.0.2"))
    assert second == Network("10.1.0.0/24", ("ib0", "ib0"), ("10.1.0.1", "10.1.0.2"))


def test_no_network_is_named_without_a_choice_or_over_routes() -> None:
    one = reaching(report("a", "eth0 10.0.0.1/24"), report("b", "eth0 10.0.0.2/24"))
    routed = reaching(report("a", "eth0 10.0.0.1/24", DOCKER), report("b", "eth0 10.9.0.2/24"))
    for reports in (one, routed):
        assert diagnosis.network_to_name(reports) is None
        assert lines(reports) == []


def test_hosts_with_only_docker_in_common_have_no_network() -> None:
    a, b = report("a", "eth0 10.0.0.1/24", DOCKER), report("b", "eth0 10.9.0.2/24", DOCKER)
    assert diagnosis.common_networks([a, b]) == []
    assert lines(reaching(a, b, "10.0.0.1", "10.9.0.2", "172.17.0.1")) == [
        "error: HOST: a, b: no network in common: a has eth0 10.0.0.1/24, docker0 172.17.0.1/16; "
        "b has eth0 10.9.0.2/24, docker0 172.17.0.1/16; "
        "connect both to one network; an address that both have is of no use"
    ]


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_way_that_is_blocked_between_routed_networks_is_named_with_its_direction(
    names: str,
) -> None:
    first, second = names
    a, b = report(first, "eth0 10.0.0.1/24", DOCKER), report(second, DOCKER, "eth0 10.9.0.2/24")
    assert lines(reaching(a, b, "10.0.0.1", "172.17.0.1")) == [
        f"error: HOST: {second}: it can't reach port 1 of {first} at 10.0.0.1: timed out; "
        "let TCP through between the hosts, on all ports"
    ]


def test_a_host_that_was_lost_blames_no_network_and_names_none() -> None:
    a, b = reaching(report("a", "eth0 10.0.0.1/24", DOCKER), report("b", "eth0 10.0.0.2/24"))
    starter = replace(a, slots=0, reached={}, load=over_ssh.LOST["load"])
    assert diagnosis.network_to_name([starter, b]) is None
    routed = report("b", "eth0 10.9.0.2/24")
    a, _ = reaching(report("a", "eth0 10.0.0.1/24"), routed, "10.9.0.2")
    assert [str(fault) for fault in diagnosis.network_faults([a, routed])] == [
        "error: HOST: a: it can't reach port 1 of b at 10.9.0.2: timed out; "
        "let TCP through between the hosts, on all ports"
    ]


def test_several_faults_are_a_line_each_and_the_count() -> None:
    faults = [DataError(HOST, "a", "down", fix="up"), DataError(HOST, "b", "down", fix="up")]
    with pytest.raises(DataError) as caught:
        doctor.stop_at(faults)
    assert caught.value.report().splitlines() == [
        "HOST: a: down; up",
        "HOST: b: down; up",
        "error: HOST: doctor: 2 faults; mend the first, which may be the cause of others, "
        "then start the doctor again",
    ]
    doctor.stop_at([])


@pytest.mark.parametrize(
    ("words", "kept", "size"),
    [
        ("mpirun -np 2 -x PATH python hvd_train/cifar.py --epochs 1", 5, 2),
        ("mpirun -np 2 /opt/venv/bin/python3.12 a.py", 3, 2),
        ("horovodrun --num-proc 8 --hosts a:4,b:4 hvd_train cifar", 5, 8),
        ("mpirun --oversubscribe -np 8 -H a:1", 6, 8),
        ("mpirun", 1, None),
        ("mpirun -np 8 ./train.sh --batch-size 4", 3, 8),
        ("mpirun --prefix /opt/python3 -np 2 -mca btl ^openib ./train", 8, 2),
        ("horovodrun --mpi ./train.sh -np 4", 2, None),
        ("env -i PATH=/bin HOME=/root horovodrun -np 2 -H a:1,b:1 python a.py", 9, 2),
        ("timeout 60 srun -n 4 --mpi pmix ./train", 7, 4),
        ("horovodrun --num-proc=2 --hosts=a:1,b:1 train", 3, 2),
    ],
)
def test_a_launch_command_is_read_up_to_its_program(
    words: str, kept: int, size: int | None
) -> None:
    launch = launch_command.parse(words.split())
    assert launch.words == tuple(words.split()[:kept])
    assert launch.size == size


@pytest.mark.parametrize(
    "words", ["python hvd_train/captcha.py", "/opt/bin/python3.12 -m x", "hvd_train/cifar.py"]
)
def test_a_program_without_its_launcher_is_refused(words: str) -> None:
    first = words.partition(" ")[0]
    with pytest.raises(DataError) as caught:
        launch_command.parse(words.split())
    assert str(caught.value) == (
        f"error: CONFIG: {first}: it is no launcher; put mpirun, horovodrun or srun before it"
    )


@pytest.mark.parametrize("words", ["prun -n 2", "python3 /opt/bin/horovodrun -np 2", "./start.sh"])
def test_a_launcher_that_is_a_script_or_unknown_is_taken(words: str) -> None:
    assert launch_command.parse(words.split()).words == tuple(words.split())


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        ("mpirun -np 2 -H a -H b", {}),
        ("mpirun -np 4 -H a:*", {}),
        ("mpirun -np 4 -H a:auto,b", {}),
        ("mpirun -np 4 -H a --map-by :OVERSUBSCRIBE", {}),
        ("mpirun -np 4 -H a", {"OMPI_MCA_rmaps_base_oversubscribe": "1"}),
        ("mpiexec -n 4 -hosts a,b", {}),
    ],
)
def test_a_launch_command_that_its_launcher_takes_isnt_refused(
    words: str, environ: dict[str, str]
) -> None:
    launch = launch_command.parse(words.split(), environ)
    assert launch.words == tuple(words.split())
    assert launch.hosts in ({"a": 1}, {"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("horovodrun --hosts=a:1 --num-proc=2 x",
         "--num-proc: 2 ranks but 1 slots; give the hosts more slots, or start "
         "horovodrun --hosts=a:1 --num-proc=1"),
        ("mpirun -H a:1 -np 3 -H b:1 x",
         "-np: 3 ranks but 2 slots; give the hosts more slots, or start "
         "mpirun -H a:1 -np 2 -H b:1"),
    ],
)  # fmt: skip
def test_more_ranks_than_slots_are_refused_with_the_right_command(words: str, line: str) -> None:
    with pytest.raises(DataError) as caught:
        launch_command.parse(words.split(), {})
    assert str(caught.value) == f"error: CONFIG: {line}"


NETWORK = Network("10.0.0.0/24", ("eth0", "eth0"), ("10.0.0.1", "10.0.0.2"))
OPEN_MPI_4, OPEN_MPI_5 = "mpirun (Open MPI) 4.1.8\n", "mpirun (Open MPI) 5.0.8\n"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)\n"


def commands(version: str, environ: dict[str, str]) -> list[str]:
    return launch_command.recommended(
        {"a": 1, "b": 1}, ssh_port=2222, network=NETWORK, version=version, environ=environ
    )


def test_recommended_commands_hand_no_secret_to_other_hosts_and_keep_ssh_alive() -> None:
    path = f"{sys.prefix}/bin:/bin"
    plain = {"PATH": path, "AWS_SECRET_ACCESS_KEY": "x", "SSH_AUTH_SOCK": "/tmp/agent"}
    horovodrun, mpirun = commands(OPEN_MPI_4, plain)
    assert horovodrun == (
        'env -i PATH="$PATH" HOME="$HOME" SSH_AUTH_SOCK="$SSH_AUTH_SOCK" horovodrun -np 2 '
        "-H a:1,b:1 -p 2222 --network-interfaces eth0 python hvd_train/cifar.py"
    )
    alive = build_horovod.mpi_parameters(Path("/venv"))["plm_rsh_args"]
    assert mpirun == (
        f"mpirun -np 2 -H a:1,b:1 -x PATH --mca plm_rsh_args '{alive} -p 2222' --mca "
        "btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_if_include 10.0.0.0/24 "
        "python hvd_train/cifar.py"
    )


def test_recommended_commands_are_of_the_mpi_that_is_there() -> None:
    environ = {"PATH": "/bin"}
    activate, horovodrun, _ = commands(OPEN_MPI_5, environ)
    assert activate == f". {sys.prefix}/bin/activate"
    assert " '--binding-args=--bind-to none --map-by slot' python " in horovodrun
    for version in (MPICH, INTEL):
        *_, mpirun = commands(version, environ)
        assert mpirun == (
            "mpirun -np 2 -hosts a:1,b:1 -genvlist PATH -bootstrap ssh "
            "-bootstrap-exec-args '-p 2222' -iface eth0 python hvd_train/cifar.py"
        )


@pytest.mark.parametrize(
    ("manifest", "script"),
    [
        ('{"kind": "captcha"}', "captcha.py"), ('{"kind": "classes"}', "cifar.py"),
        ('{"kind": []}', ""), ("[]", ""), ("{", ""), (None, ""),
    ],
)  # fmt: skip
def test_recommended_commands_train_on_the_data_set_that_was_looked_at(
    manifest: str | None, script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "my data"
    if manifest is not None:
        data.mkdir()
        (data / "manifest.json").write_text(manifest)
    doctor.advise({"a": 2}, None, None, str(data))
    said = capsys.readouterr().out.splitlines()
    example = "" if script else ", such as cifar.py,"
    assert said[1] == f"no faults; start training{example} with one of"
    program = f" python hvd_train/{script or 'cifar.py'} --data '{data}'"
    assert sum(line.endswith(program) for line in said) == 2


def test_launch_takes_the_mpirun_of_open_mpi_alone() -> None:
    for version in (OPEN_MPI_4, OPEN_MPI_5, ""):
        launch.check_mpi(version)
    for version in (MPICH, INTEL):
        with pytest.raises(DataError) as caught:
            launch.check_mpi(version)
        assert str(caught.value) == (
            "error: CONFIG: mpirun: it isn't Open MPI's, whose flags and signals are needed; "
            "put the environment's first on PATH, or build it with Open MPI: make env"
        )


def test_the_mpirun_on_path_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    assert re.search(r"Open MPI|HYDRA|Intel", launch_command.mpi_version())
    assert launch_command.mpi_version("/nowhere") == ""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("[1,0]<stderr>:error: CONFIG: srun: its 2 tasks have no PMIx; srun --mpi=pmix\n"
         "srun: error: vm: tasks 0-1: Exited with exit code 2",
         "error: CONFIG: srun: its 2 tasks have no PMIx; srun --mpi=pmix"),
        ("RuntimeError: could not connect to some hosts via ssh",
         "error: HOST: x: it can't reach a host by ssh; "
         "hvd_train doctor -H HOST:SLOTS,... tells why"),
        ("ValueError: Requested more processes (4) than there are available slots (2)",
         "error: CONFIG: x: there are more ranks than slots; "
         "start fewer, or give hosts more slots as in -H host1:4"),
        ("ModuleNotFoundError: No module named 'distutils'",
         "error: CONFIG: x: horovodrun needs setuptools on this Python; pip install setuptools"),
        ("Segmentation fault\n-----\n",
         "error: RANK: x: no rank reported, it didn't end and said 'Segmentation fault'; "
         "see what it wrote above"),
    ],
)  # fmt: skip
def test_what_a_launcher_said_is_explained(said: str, line: str) -> None:
    assert str(launch_command.explain("x", None, said)) == line


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("ssh: connect to host a port 22: Connection timed out",
         "nothing answers there; see whether it is up, and its firewall"),
        ("ssh: connect to host a port 22: No route to host",
         "there is no route to it; see whether it is up and connected"),
        ("bash: line 1: exec: python3: cannot execute",
         "the probe didn't run there: bash: line 1: exec: python3: cannot execute; "
         "see that this works: ssh -o BatchMode=yes a true"),
        ("ann@a: Permission denied (publickey,password).",
         "sshd refuses the key of ann; ssh-copy-id a"),
        ("ssh: connect to host a port 22: Connection refused",
         "no sshd answers; start sshd there, or name its port by --ssh-port"),
    ],
)  # fmt: skip
def test_what_ssh_said_is_explained(said: str, reason: str) -> None:
    assert str(over_ssh.ssh_fault("a", None, said)) == f"error: HOST: a: {reason}"


def test_the_names_of_this_machine_are_known() -> None:
    assert over_ssh.any_is_here(["no.such.host.invalid", "localhost"])
    assert over_ssh.is_here(socket.gethostname())
    assert not over_ssh.any_is_here(["no.such.host.invalid", "203.0.113.9", "host..1"])


SILENT = """
import socket, time
from hvd_train import over_ssh
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", 53))
    begin = time.monotonic()
    assert not over_ssh.any_is_here(["node1.example.org", "node2.example.org"])
    assert time.monotonic() - begin < 15, "longer than a host may take to answer"
"""


def test_a_name_server_that_is_silent_does_not_hold_up_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:1\n")
    own = ["unshare", "--map-root-user", "--mount", "--net", "sh", "-ec"]
    if subprocess.run([*own, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("a network of our own needs namespaces")
    script = 'ip link set lo up; mount --bind "$1" /etc/resolv.conf; exec "$2" -c "$3"'
    words = [tmp_path / "resolv.conf", sys.executable, SILENT]
    subprocess.run([*own, script, "sh", *words], check=True, timeout=60)


def test_what_becomes_of_a_roll_call_is_understood() -> None:
    line = (
        "error: CONFIG: host1: 2 ranks, but rank 1 sees 1 GPUs, which lower ranks take; "
        "start one rank a GPU: CUDA_VISIBLE_DEVICES=-1"
    )
    told = rank_report.understood(2, "", f"warning: words of a library\n{line}\nbye\n")
    assert str(rank_report.error_of(told)) == line
    silent = rank_report.understood(2, "", "warning: words of a library\n")
    assert "error" in silent and rank_report.error_of(silent) is None
    assert str(rank_report.error_of(rank_report.understood(-11, "", "error: bad\n"))) == (
        "error: RANK: Horovod: Horovod ends with -11 and says 'error: bad'; "
        "hvd_train doctor -H HOST:SLOTS,... looks at the network between the hosts"
    )
    assert rank_report.understood(0, 'TF\n{"reports": []}\n', "") == {"reports": []}


def test_ranks_have_as_long_as_their_parts_to_load_and_meet() -> None:
    assert rank_report.TOGETHER_SECONDS >= probe.LOAD_SECONDS + probe.MEET_SECONDS
    assert doctor.LAUNCH_SECONDS > rank_report.TOGETHER_SECONDS + probe.LOAD_SECONDS


def test_a_host_on_which_tensorflow_takes_too_long_is_not_told_to_install_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.PIPE, text=True
    )
    slow = probe.loaded(process, 1.0)
    assert process.returncode == -signal.SIGKILL
    assert lines([replace(report("a"), load=slow)]) == [
        "error: HOST: a: TensorFlow isn't loaded after 1 s; "
        "see whether its cores are overloaded or its disk is slow, then try again"
    ]


def test_a_report_is_read_whatever_a_launcher_puts_around_it() -> None:
    line = rank_report.encode({"rank": 1, "host": "ü"})
    assert line.isascii()
    assert rank_report.decode(f"[1,1]<stdout>:{line}\n") == {"rank": 1, "host": "ü"}
    assert rank_report.decode(line[:-4]) is None
    assert rank_report.decode("step 1") is None


def test_the_probe_is_text_that_any_python_reads() -> None:
    assert over_ssh.PROBE.isascii()
    tree = ast.parse(over_ssh.PROBE, feature_version=(3, 7))
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }  # fmt: skip
    assert imported <= sys.stdlib_module_names


def test_addresses_that_do_not_answer_as_the_host_meant_are_told_apart() -> None:
    port = probe.open_port("other")
    number = port.getsockname()[1]
    with port:
        peer = {"addresses": ["127.0.0.1"], "port": number, "identity": "meant"}
        twin = {"addresses": ["127.0.0.1"], "port": number, "identity": "other"}
        assert probe.reach({"a": peer, "b": twin}) == {
            "a": {"127.0.0.1": "another host answers there"}, "b": {"127.0.0.1": ""},
        }  # fmt: skip


@pytest.mark.parametrize("said", [b"\xff\xfe" * 8, b"SSH-2.0-OpenSSH_9.2\r\n" * 1000])
def test_a_stranger_behind_a_port_may_say_anything(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(said)
                peer.recv(1)  # it doesn't hang up

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        peers = {"a": {"addresses": ["127.0.0.1"], "port": port, "identity": "0" * 8}}
        assert probe.reach(peers) == {"a": {"127.0.0.1": "another host answers there"}}


def test_an_empty_list_of_hosts_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        doctor.main(Doctor(hosts=""))
    assert str(caught.value) == (
        "error: CONFIG: -H: '' is no name of a host; write it like -H host1:4,host2:4"
    )


def test_the_doctor_loads_neither_tensorflow_nor_horovod_nor_mpi() -> None:
    script = "import sys, hvd_train.doctor; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"tensorflow", "keras", "horovod", "mpi4py", "numpy"} & set(ran.stdout.split())
