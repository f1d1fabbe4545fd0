"""What the facts of hosts or ranks say: a table of them, and what is wrong with the fix of each."""

import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from typing import Any

from data_tools.errors import CONFIG, HOST, INTEGRITY, SPACE, DataError

Faults = Iterator[DataError]
LEAST_FREE = 100_000_000
"""Bytes that a run's first checkpoint, or Open MPI's files in the temporary folder, may take."""
MOST_SKEW = 30.0
"""Seconds; clocks kept by NTP differ by less than one."""
SAME = {
    "Python": "build the environment there with the same Python: make env PYTHON=...",
    "TensorFlow": "run make env there with the same requirements.txt",
    "Horovod": "run make env there, or python tools/build_horovod.py",
}
"""What must be the same on all hosts, and how it becomes so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A host, or one rank, as its probe found it.

    Attributes:
        where: the host's name.
        rank: under a launcher.
        slots: ranks on that host; 0 for a host that only starts the others.
        facts: of `probe.facts`.
        load: of `probe.loaded`, None where there is no interpreter.
        skew: seconds by which its clock is ahead.
        reached: of `probe.reach`.
    """

    where: str
    slots: int
    rank: int | None = None
    facts: dict[str, Any]
    load: dict[str, Any] | None = None
    skew: float = 0.0
    reached: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def versions(self) -> dict[str, str]:
        """Of Python without its last number, TensorFlow and Horovod, as far as they are there."""
        load = self.load or {}
        found = {"Python": self.facts["python"].rpartition(".")[0]} if self.load else {}
        for name in ("TensorFlow", "Horovod"):
            if name.lower() in load:
                found[name] = load[name.lower()]
        return found

    @property
    def interfaces(self) -> list[tuple[str, IPv4Interface]]:
        """Names and addresses of the interfaces."""
        return [(name, IPv4Interface(address)) for name, address in self.facts["interfaces"]]


def diagnose(reports: Sequence[Report], data: str | None) -> list[DataError]:
    """Returns what is wrong, first what may be the cause of the rest.

    Args:
        reports: of the hosts, or of all ranks.
        data: the data set folder.
    """
    ranks = [report for report in reports if report.slots]
    found = [
        *name_faults(ranks), *folder_faults(ranks), *load_faults(ranks), *version_faults(ranks),
        *data_faults(ranks, data), *network_faults(reports), *slot_faults(ranks),
        *space_faults(ranks), *clock_faults(ranks),
    ]  # fmt: skip
    return list({str(fault): fault for fault in found}.values())  # ranks of a host share many


def name_faults(reports: Sequence[Report]) -> Faults:
    """Hosts that Horovod and Open MPI take for one."""
    by_name: dict[str, list[str]] = {}
    for report in reports:
        by_name.setdefault(report.facts["host"], []).append(report.where)
    for name, hosts in by_name.items():
        if len(set(hosts)) > 1:
            yield DataError(
                HOST, ", ".join(hosts), f"the host name of each is {name}",
                fix="give each its own, hostnamectl hostname NAME, and name none twice",
            )  # fmt: skip


def folder_faults(reports: Sequence[Report]) -> Faults:
    """Where the project or the working folder isn't at the same path."""
    for report in reports:
        for folder in report.facts["missing"]:
            yield DataError(
                HOST, report.where, f"no folder {folder} there",
                fix="put the project at the same path on all hosts, and start in it",
            )  # fmt: skip


def load_faults(reports: Sequence[Report]) -> Faults:
    """Where TensorFlow or Horovod doesn't load, or is of no use under MPI."""
    for report in reports:
        load, where = report.load, report.where
        if load is None:
            continue
        if "late" in load:
            yield DataError(
                HOST, where, f"TensorFlow isn't loaded after {load['late']:.0f} s",
                fix="see whether its cores are overloaded or its disk is slow, then try again",
            )  # fmt: skip
        elif "error" in load:
            name = "Horovod" if "tensorflow" in load else "TensorFlow"
            yield DataError(HOST, where, f"{name} doesn't load: {load['error']}", fix=SAME[name])
        elif not load.get("mpi", True):
            yield DataError(
                HOST, where, "Horovod was built without MPI",
                fix="start with horovodrun --gloo, or put mpicxx on PATH there and run "
                "python tools/build_horovod.py --rebuild",
            )  # fmt: skip


def version_faults(reports: Sequence[Report]) -> Faults:
    """Where versions or the project's own code differ from the first."""
    for report in reports[1:]:
        first = reports[0]
        for name, version in report.versions.items():
            if (other := first.versions.get(name, version)) != version:
                reason = f"{name} {version}, {first.where} has {other}"
                yield DataError(HOST, report.where, reason, fix=SAME[name])
        if not report.facts["missing"] and report.facts["code"] != first.facts["code"]:
            yield DataError(
                HOST, report.where, f"the project's code differs from that of {first.where}",
                fix="bring both to the same commit, or copy the project again",
            )  # fmt: skip


def data_faults(reports: Sequence[Report], data: str | None) -> Faults:
    """Where the data set is absent, damaged, or another one than the first that is there."""
    whole = [report for report in reports if "digest" in (report.facts["data"] or {})]
    lacking = [report for report in reports if "error" in (report.facts["data"] or {})]
    if lacking and not whole:
        hosts = ", ".join(dict.fromkeys(report.where for report in lacking))
        yield DataError(
            CONFIG, data, f"no data set there on {hosts}: {lacking[0].facts['data']['error']}",
            fix="correct --data, or convert one: data_tools --help",
        )  # fmt: skip
        return
    for report in reports:
        found = report.facts["data"]
        if found is None:
            continue
        if "error" in found:
            copy = shlex.join(["rsync", "-a", f"{data}/", f"{report.where}:{data}"])
            fix = f"copy the data set to the same path there, from {whole[0].where}: {copy}"
            yield DataError(HOST, report.where, found["error"], fix=fix)
            continue
        if found["wrong"]:
            count = len(found["wrong"]) - 1
            more = f", as {count} more" if count else ""
            yield DataError(
                INTEGRITY, report.where, f"{data}/{found['wrong'][0]}",
                f"absent or of another size than the manifest says{more}",
                fix="copy the data set again, then data_tools verify",
            )  # fmt: skip
        if found["digest"] != whole[0].facts["data"]["digest"]:
            yield DataError(
                INTEGRITY, report.where, data, f"another data set than that of {whole[0].where}",
                fix="copy one of them to all hosts",
            )  # fmt: skip


def space_faults(reports: Sequence[Report]) -> Faults:
    """Where a run could write nothing."""
    for report in reports:
        for folder, free in report.facts["free"].items():
            if free < LEAST_FREE:
                yield DataError(
                    SPACE, report.where, folder, f"{free // 1_000_000} MB are free",
                    fix="free some space there",
                )  # fmt: skip


def slot_faults(reports: Sequence[Report]) -> Faults:
    """Where there are more ranks than GPUs, or than cores on a host without GPUs.

    Each rank may see GPUs or cores of its own. Ranks that met have found a GPU each, and where not
    all of a host have reported nobody knows what the others have.
    """
    by_host: dict[str, list[Report]] = {}
    for report in reports:
        by_host.setdefault(report.where, []).append(report)
    for ranks in by_host.values():
        report = ranks[0]
        gpus = (report.load or {}).get("gpus", 0)
        if report.rank is not None and (gpus or len(ranks) < report.slots):
            continue
        most, what = (gpus, "GPUs") if gpus else (_cores(ranks), "cores")
        if report.slots > most:
            yield DataError(
                CONFIG, report.where, f"{report.slots} slots but {most} {what}",
                fix=f"give it at most {most}, as in -H {report.where}:{most}",
            )  # fmt: skip


def _cores(ranks: Sequence[Report]) -> int:
    """Those that ranks of one host may use together."""
    masks = {tuple(report.facts.get("mask", ())) for report in ranks}
    if len(masks) > 1:
        return len(set().union(*masks))
    return int(ranks[0].facts["cores"][0])


def clock_faults(reports: Sequence[Report]) -> Faults:
    """Where the clock is wrong."""
    for report in reports:
        if abs(report.skew) > MOST_SKEW:
            side = "ahead of" if report.skew > 0 else "behind"
            yield DataError(
                HOST, report.where,
                f"its clock is {abs(report.skew):.0f} s {side} that of this host",
                fix="set it by NTP: timedatectl set-ntp true",
            )  # fmt: skip


def network_faults(reports: Sequence[Report]) -> Faults:
    """Pairs of hosts of which one doesn't reach the other by any address."""
    by_host = {report.where: report for report in reports}
    for report in reports:
        for name, tried in report.reached.items():
            if "" in tried.values():
                continue
            peer = by_host[name]
            shared = common_networks([report, peer])
            back = peer.reached.get(report.where)  # None where it was lost before it could tell
            if not shared and back is not None and "" not in back.values():
                if report.where < name:  # once for both
                    yield DataError(
                        HOST, f"{report.where}, {name}",
                        f"no network in common: {listed(report)}; {listed(peer)}",
                        fix="connect both to one network; an address that both have is of no use",
                    )  # fmt: skip
            elif tried:
                address = shared[0].addresses[1] if shared else _address_of(peer, report)
                yield DataError(
                    HOST, report.where, f"it can't reach port {peer.facts['port']} of {name} "
                    f"at {address}: {tried[address]}",
                    fix="let TCP through between the hosts, on all ports",
                )  # fmt: skip


def _address_of(report: Report, other: Report) -> str:
    """Its first address, if there is one that the other doesn't have too, as of docker0."""
    addresses = [str(address.ip) for _, address in report.interfaces]
    taken = {str(address.ip) for _, address in other.interfaces}
    return next((address for address in addresses if address not in taken), addresses[0])


def listed(report: Report) -> str:
    """As "host1 has eth0 10.0.0.1/24, docker0 172.17.0.1/16"."""
    pairs = [" ".join(pair) for pair in report.facts["interfaces"]]
    return f"{report.where} has {', '.join(pairs) or 'no interface'}"


@dataclass(frozen=True, slots=True)
class Network:
    """A network in which each of some hosts has an address of its own.

    Attributes:
        name: such as 10.0.0.0/24.
        interfaces: of each host.
        addresses: of each host.
    """

    name: str
    interfaces: tuple[str, ...]
    addresses: tuple[str, ...]


def common_networks(reports: Sequence[Report]) -> list[Network]:
    """Returns the networks of all hosts, but those where several have the same address."""
    found = []
    for network in dict.fromkeys(address.network for _, address in reports[0].interfaces):
        own = [
            (name, str(address.ip))
            for report in reports
            for name, address in dict.fromkeys(report.interfaces)
            if address.network == network
        ]
        names, addresses = zip(*own, strict=True)
        if len(set(addresses)) == len(addresses) == len(reports):
            found.append(Network(str(network), names, addresses))
    return found


def network_to_name(reports: Sequence[Report]) -> Network | None:
    """The network to name to launchers.

    None where there is no choice, each host having one address, or no such network, where hosts
    reach each other by routes alone.
    """
    if len(reports) == 1 or all(len(report.interfaces) == 1 for report in reports):
        return None
    for network in common_networks(reports):
        own = dict(zip((report.where for report in reports), network.addresses, strict=True))
        pairs = itertools.permutations(reports, 2)
        if all(a.reached.get(b.where, {}).get(own[b.where]) == "" for a, b in pairs):
            return network
    return None


def table(reports: Sequence[Report]) -> str:
    """One line for each host or rank, its facts in columns."""
    rows = [
        ("host", "slots" if reports[0].rank is None else "rank",
         "cores", "GPUs", "Python", "TensorFlow", "Horovod", "data", "free",
         "clock", "interfaces"),
        *map(_row, reports),
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(report: Report) -> tuple[str, ...]:
    facts, load = report.facts, report.load or {}
    free = min(facts["free"].values(), default=0)
    return (
        report.where, str(report.slots if report.rank is None else report.rank),
        "{} of {}".format(*facts["cores"]),
        str(load.get("gpus", "-")), facts["python"], load.get("tensorflow", "-"),
        load.get("horovod", "-"), (facts["data"] or {}).get("digest", "-")[:8],
        f"{free / 1e9:.1f} GB", f"{report.skew:+.1f} s",
        ", ".join(" ".join(pair) for pair in facts["interfaces"]) or "-",
    )  # fmt: skip
