"""The command `hvd_train hosts`: which hosts a job has, in the form that each launcher reads.

Forms: an Open MPI hostfile has lines `host slots=4`, a machinefile of MPICH and Intel MPI `host:4`,
PBS and LSF name a host on a line for each of its slots, `-H` joins `host:4` by commas.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from data_tools.errors import CONFIG, INPUT, DataError, Fault
from hvd_train.flags import Hosts

Slots = dict[str, int]
"""Slots by host, in the order of the launcher's ranks."""

KUBERNETES_FILE = Path("/etc/mpi/hostfile")
SLOTS_KEYS = ("slots", "count", "cpus", "cpu")
MAX_SLOTS_KEYS = ("max_slots", "max-slots")
MAX_NODES = 100_000
MAX_SLOTS = 999_999
LONGEST = 80
"""Characters of a word that a message quotes; a line may be a whole binary file."""
FORM = "write host slots=4, or host:4"


def main(command: Hosts) -> None:
    """Prints the hosts that the command line, a file or the scheduler names."""
    hosts, source = find(command)
    if command.form != "all":
        print(FORMS[command.form](hosts))
        return
    slots = counted(sum(hosts.values()), "slot")
    print(f"{slots} on {counted(len(hosts), 'host')}, from {source}")
    for name, write in FORMS.items():
        try:
            text = write(hosts)
        except DataError as error:
            text = f"{error.reason}; {error.fix}"
        print(f"\n{TITLES[name]}\n{text}")


def find(command: Hosts, environ: Mapping[str, str] = os.environ) -> tuple[Slots, str]:
    """Returns the hosts and where they are from.

    Raises:
        DataError: CONFIG when none are named or the scheduler's variables are no hosts, INPUT when
            a file isn't a hostfile.
    """
    if command.file is not None and command.hosts is not None:
        raise DataError(CONFIG, "-H", f"{command.file} names hosts too", fix="give one of both")
    if command.file is not None:
        return read_file(command.file), str(command.file)
    if command.hosts is not None:
        return read_list(command.hosts), "-H"
    return of_scheduler(environ)


def of_scheduler(environ: Mapping[str, str]) -> tuple[Slots, str]:
    """Returns the hosts of this job, as Slurm, PBS, LSF or Kubernetes' MPI operator tell them."""
    if nodes := environ.get("SLURM_JOB_NODELIST"):
        return of_slurm(nodes, environ.get("SLURM_TASKS_PER_NODE", "")), "$SLURM_JOB_NODELIST"
    for name in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        if path := environ.get(name):
            return read_file(Path(path)), f"${name}"
    if pairs := environ.get("LSB_MCPU_HOSTS"):
        return of_lsf(pairs), "$LSB_MCPU_HOSTS"
    if KUBERNETES_FILE.exists():
        return read_file(KUBERNETES_FILE), str(KUBERNETES_FILE)
    raise DataError(
        CONFIG, "hosts", "no file, no -H, and no scheduler tells which",
        fix="name a hostfile, or -H host1:4,host2:4",
    )  # fmt: skip


def read_file(path: Path) -> Slots:
    """Reads a hostfile of any form; a host on several lines has their slots together.

    Raises:
        DataError: INPUT for lines that are no hosts, by their numbers, or when there are none.
    """
    found = read_lines(path.read_text(encoding="utf-8-sig", errors="replace"), path)
    if not found:
        raise DataError(INPUT, path, "it names no host", fix=FORM)
    return found


def read_lines(text: str, where: Path) -> Slots:
    """Reads the lines of a hostfile, which may name no host.

    Raises:
        DataError: INPUT for lines that are no hosts, by their numbers.
    """
    found, faults = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        if words := line.partition("#")[0].strip():
            try:
                found.append(_read_line(words))
            except ValueError as error:
                faults.append(Fault(number, INPUT, f"{where}:{number}", str(error), FORM))
    if len(faults) == 1:
        raise faults[0].error()
    if faults:
        raise DataError(
            INPUT, where, f"{len(faults)} lines are no hosts", fix=FORM,
            faults=[fault.line() for fault in faults],
        )  # fmt: skip
    return _joined(found)


def read_list(text: str) -> Slots:
    """Reads `host1:4,host2:4`; a host without a number has one slot.

    Raises:
        DataError: CONFIG when it is no such list.
    """
    try:
        return _parsed(text)
    except ValueError as error:
        reason = str(error)
    words = ",".join(re.split(r"[\s,;]+", text.strip(" \t,;")))
    try:  # where only what stands between the hosts is wrong
        _parsed(words)
    except ValueError:
        words = "host1:4,host2:4"
    raise DataError(CONFIG, "-H", reason, fix=f"write it like -H {words}")


def _parsed(text: str) -> Slots:
    split = [_split(item.strip()) for item in text.split(",")]
    return _joined((host, slots or 1) for host, slots in split)


def of_slurm(nodes: str, tasks: str) -> Slots:
    """Reads Slurm's `node[01-03,07],gpu5` and `2(x4),1`.

    Raises:
        DataError: CONFIG when they are no such lists, or not of one length.
    """
    try:
        names = [name for part in _outer_split(nodes) for name in _expand(part)]
    except ValueError as error:
        raise _of_variable("SLURM_JOB_NODELIST", str(error)) from None
    if not tasks:
        raise _of_variable("SLURM_TASKS_PER_NODE", "it is not set")
    counts = []
    for part in tasks.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if match is None or int(match[1]) == 0:
            raise _of_variable("SLURM_TASKS_PER_NODE", f"{quoted(part)} is no number of tasks")
        counts += [int(match[1])] * int(match[2] or 1)
    if len(counts) != len(names):
        reason = f"it is of {counted(len(counts), 'node')}, SLURM_JOB_NODELIST of {len(names)}"
        raise _of_variable("SLURM_TASKS_PER_NODE", reason)
    return _joined(zip(names, counts, strict=True))


def of_lsf(pairs: str) -> Slots:
    """Reads LSF's `hostA 4 hostB 2`.

    Raises:
        DataError: CONFIG when it is no such list.
    """
    words = pairs.split()
    if len(words) % 2:
        raise _of_variable("LSB_MCPU_HOSTS", f"{quoted(words[-1])} has no number after it")
    try:
        named = zip(words[::2], words[1::2], strict=True)
        return _joined((_host(host), _slots(count)) for host, count in named)
    except ValueError as error:
        raise _of_variable("LSB_MCPU_HOSTS", str(error)) from None


def for_horovodrun(hosts: Slots) -> str:
    """The flag for horovodrun, which takes names and IPv4 addresses only.

    Raises:
        DataError: CONFIG for an IPv6 address.
    """
    return f"-H {to_list(hosts, 'horovodrun')}"


def to_list(hosts: Slots, launcher: str) -> str:
    """The value of a launcher's -H, `host1:4,host2:4`.

    Raises:
        DataError: CONFIG for an IPv6 address.
    """
    return ",".join(f"{host}:{slots}" for host, slots in _named(hosts, launcher))


def for_open_mpi(hosts: Slots) -> str:
    """The lines of a hostfile for Open MPI's mpirun, and for horovodrun."""
    return "\n".join(f"{host} slots={slots}" for host, slots in hosts.items())


def for_mpich(hosts: Slots) -> str:
    """The lines of a machinefile for mpiexec of MPICH and Intel MPI.

    Raises:
        DataError: CONFIG for an IPv6 address.
    """
    return "\n".join(f"{host}:{slots}" for host, slots in _named(hosts, "MPICH"))


FORMS: dict[str, Callable[[Slots], str]] = {
    "horovodrun": for_horovodrun, "openmpi": for_open_mpi, "mpich": for_mpich
}  # fmt: skip
TITLES = {
    "horovodrun": "for horovodrun:",
    "openmpi": "hostfile of Open MPI, for mpirun --hostfile FILE and horovodrun --hostfile FILE:",
    "mpich": "machinefile of MPICH and Intel MPI, for mpiexec -f FILE:",
}


def counted(number: int, what: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def cut(text: str) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def quoted(text: str) -> str:
    """The text in quotes, cut as it is written there."""
    whole = repr(text[: LONGEST + 1])
    return whole if len(whole) <= LONGEST + 2 else cut(whole) + whole[0]


def _named(hosts: Slots, launcher: str) -> Iterator[tuple[str, int]]:
    for host, slots in hosts.items():
        if ":" in host:
            raise DataError(
                CONFIG, host, f"{launcher} takes no IPv6 address",
                fix="give that host a name in /etc/hosts",
            )  # fmt: skip
        yield host, slots


def _joined(found: Iterable[tuple[str, int]]) -> Slots:
    hosts: Slots = {}
    for host, slots in found:
        hosts[host] = hosts.get(host, 0) + slots
    return hosts


def _read_line(line: str) -> tuple[str, int]:
    """The host and slots of a line without its comment; ValueError says what is wrong with it."""
    first, *words = "=".join(part.strip() for part in line.split("=")).split()
    host, slots = _split(first)
    limit = None
    for word in words:
        key, _, value = word.partition("=")
        if key in SLOTS_KEYS and slots is None:
            slots = _slots(value)
        elif key in MAX_SLOTS_KEYS:
            limit = _slots(value)
        else:
            raise ValueError(f"{quoted(word)} after {cut(first)} is neither slots= nor max_slots=")
    slots = slots or 1
    if limit is not None and limit < slots:
        raise ValueError(f"{counted(slots, 'slot')}, but max_slots={limit}")
    return host, slots


def _split(item: str) -> tuple[str, int | None]:
    """`host:4`, `[fe80::1]:4`, or a host or address alone."""
    bracketed = re.fullmatch(r"\[([^]]*)\](?::(.*))?", item)
    if bracketed:
        host, count = bracketed.groups()
        return _address(host), None if count is None else _slots(count)
    if item.count(":") > 1 and not re.search(r"[\s,;]", item):
        return _address(item), None
    host, colon, count = item.partition(":")
    return _host(host), _slots(count) if colon else None


def _host(name: str) -> str:
    if "@" in name:
        raise ValueError(f"{quoted(name)} names a user, which belongs into ~/.ssh/config")
    labels = name.removesuffix(".").split(".")
    if not re.fullmatch(r"\w[\w.-]*", name) or not all(1 <= len(label) <= 63 for label in labels):
        raise ValueError(f"{quoted(name)} is no name of a host")
    return name


def _address(text: str) -> str:
    try:
        if not re.fullmatch(r"[^%]*(%[\w.-]+)?", text):  # ipaddress takes any scope
            raise ValueError
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        raise ValueError(f"{quoted(text)} is no IPv6 address") from None


def _slots(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or int(text) == 0:
        raise ValueError(f"{quoted(text)} is no number of slots from 1 to {MAX_SLOTS:,}")
    return int(text)


def _outer_split(nodes: str) -> list[str]:
    """Splits at commas outside brackets."""
    return re.split(r",(?![^\[]*\])", nodes)


def _expand(part: str) -> list[str]:
    """The names in `node[01-03,07]`, whose ranges may stand at several places."""
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [_host(part)]
    inside, closed, tail = rest.partition("]")
    if not closed:
        raise ValueError(f"{quoted(part)} has no closing bracket")
    numbers = [number for span in inside.split(",") for number in _span(span)]
    tails = _expand("x" + tail)  # which must be a name with what stands before it
    if len(numbers) * len(tails) > MAX_NODES:
        raise ValueError(f"{quoted(part)} is more than {MAX_NODES:,} nodes")
    return [_host(head + number + end[1:]) for number in numbers for end in tails]


def _span(span: str) -> list[str]:
    """The numbers of `07` or `01-03`, as wide as the first is."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", span, re.ASCII)
    if match is None:
        raise ValueError(f"{quoted(span)} is no range of nodes")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 0 <= last - first < MAX_NODES:
        raise ValueError(f"{quoted(span)} is no range of nodes")
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]


def _of_variable(name: str, reason: str) -> DataError:
    return DataError(CONFIG, f"${name}", reason, fix="name a hostfile, or -H host1:4,host2:4")
