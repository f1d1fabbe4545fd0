"""Which of the GPUs that it sees a rank takes, so that no two take the same.

Launchers show a rank all GPUs of its host, or one of its own. CUDA_VISIBLE_DEVICES doesn't tell
which: where a scheduler shuts a rank into a cgroup, it is 0 for each. A GPU's UUID does.
"""

import ctypes
from collections.abc import Sequence

from data_tools.errors import CONFIG, DataError
from data_tools.launch_env import LaunchEnv


def choose(seen: Sequence[Sequence[str]], rank: int, launch: LaunchEnv) -> int:
    """Returns which of the GPUs that a rank sees is its own: the first that no lower rank takes.

    Args:
        seen: what each rank sees, by rank; equal names are one GPU.
        rank: this rank, which sees at least one.
        launch: names the host and counts its ranks.

    Raises:
        DataError: CONFIG when lower ranks take all that it sees.
    """
    taken: set[str] = set()
    for names in seen[:rank]:
        taken.update([name for name in names if name not in taken][:1])
    free = (index for index, name in enumerate(seen[rank]) if name not in taken)
    index = next(free, None)
    if index is None:
        raise DataError(
            CONFIG, launch.host,
            f"{launch.local_size} ranks, but rank {rank} sees {len(seen[rank])} GPUs, "
            "which lower ranks take",
            fix="start one rank a GPU, show each all GPUs or one of its own, or none: "
            "CUDA_VISIBLE_DEVICES=-1",
        )  # fmt: skip
    return index


def identities(count: int, host: str) -> list[str]:
    """Returns a name for each GPU that this process sees, in CUDA's order, which is TensorFlow's.

    Args:
        count: how many TensorFlow sees.
        host: makes names where there are no UUIDs, as with other drivers than CUDA's: all ranks of
            a host are then taken to see the same GPUs.
    """
    uuids = _cuda_uuids() if count else []
    return uuids if len(uuids) == count else [f"{host}:{index}" for index in range(count)]


def _cuda_uuids() -> list[str]:
    """The UUIDs by CUDA's driver, which takes no memory on a GPU for it; none without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    uuids = []
    for ordinal in range(count.value):
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        # v2 tells the slices of one GPU apart.
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetUuid_v2(uuid, device):
            return []
        uuids.append(bytes(uuid).hex())
    return uuids
