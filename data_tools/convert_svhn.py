"""`data_tools svhn-to-tfrecord`: the cropped digits of SVHN to a data set folder."""

from data_tools import manifest as manifests
from data_tools.console import print_result
from data_tools.convert_arrays import Examples, finish_set, write_splits
from data_tools.flags import SvhnToTfrecord
from data_tools.manifest import ImageSpec
from data_tools.sources import svhn
from data_tools.writer import WrittenShard, atomic_folder, check_inputs_stay

NAME = "svhn"


def main(command: SvhnToTfrecord) -> None:
    """Runs the command."""
    files = svhn.find_files(command.src)
    check_inputs_stay(command.out, [("source", path) for path in files.values()])
    written: dict[str, list[WrittenShard]] = {}
    with atomic_folder(command.out, overwrite=command.overwrite) as incomplete:
        for split, path in files.items():  # one after the other: each is unpacked on the disk
            batch = svhn.read_file(path, incomplete)
            examples = Examples((batch,), range(len(batch.labels)))
            written |= write_splits(
                incomplete, {split: examples}, shards=command.shards, workers=command.workers
            )
        height, width, channels = svhn.SHAPE
        manifest = finish_set(
            incomplete, written,
            name=NAME,
            image=ImageSpec(height=height, width=width, channels=channels, encoding="raw"),
            arguments=[f"--shards={command.shards}"],
            classes=tuple(map(str, range(svhn.DIGITS))),
        )  # fmt: skip
    print_result(
        [f"{command.out}: {manifests.describe(manifest, 'images of SVHN', files)}"],
        manifests.facts(command.out, manifest), as_json=command.json,
    )  # fmt: skip
