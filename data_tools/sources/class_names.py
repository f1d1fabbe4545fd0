"""Reads files that name the classes of a set, a line each, in the order of their numbers."""

from pathlib import Path

from data_tools.errors import INPUT, DataError, os_errors


def read_names(path: Path) -> tuple[str, ...]:
    """Returns the names; blank lines at the end are none.

    Raises:
        DataError: INPUT when the file can't be read as that, or names two classes alike.
    """
    with os_errors(path):
        data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            INPUT, path, f"byte {error.start}", "the names are not UTF-8", fix="save them as UTF-8"
        ) from error
    names = tuple(name.strip() for name in text.rstrip().splitlines())
    for number, name in enumerate(names, 1):
        if not name or not name.isprintable() or name in names[: number - 1]:
            again = " again" if name in names[: number - 1] else ""
            raise DataError(
                INPUT, path, f"row {number}", f"the name {name!r}{again}",
                fix="write the name of each class on a line of its own",
            )  # fmt: skip
    return names
