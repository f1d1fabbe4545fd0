"""Where a run's settings come from: flags, files, and the run that goes on.

Defaults < `--config FILE.yaml` < flags. A file becomes flags put before the user's own, so both are
checked alike and the last one holds. On `--resume` the run's saved config.yaml is such a file.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from data_tools.errors import CONFIG, DataError, os_errors, parse_flags
from hvd_train.config import FREE_ON_RESUME, NOT_IN_FILES, NOT_SAVED, OF_THIS_CALL, TrainConfig

C = TypeVar("C", bound=TrainConfig)


def parse_config(
    config_type: type[C], argv: Sequence[str], *, prog: str
) -> tuple[C, frozenset[str]]:
    """Reads a command line and its `--config` file.

    Returns:
        The settings, and the names of those that were given, not left at their defaults.

    Raises:
        DataError: CONFIG when a flag, a value or the file isn't understood.
    """
    path = _config_file(argv)
    from_file = read_settings(path, config_type) if path else {}
    try:
        config = _parse(config_type, [*flags_of(from_file), *argv], prog)
    except DataError:
        if path is not None:
            with _told_of(path):  # unless what is wrong comes from the flags
                _parse(config_type, flags_of(from_file), prog)
        raise
    given = frozenset(name for name in flat(config) if name in from_file or _is_given(name, argv))
    if {"batch_size", "global_batch"} <= given:
        raise DataError(
            CONFIG, "--global-batch", "--batch-size is given too",
            fix="give the batch of a rank or the batch of all ranks",
        )  # fmt: skip
    return config, given


def _parse(config_type: type[C], argv: Sequence[str], prog: str) -> C:
    import tyro

    return parse_flags(config_type, prog=prog, argv=argv, config=(tyro.conf.OmitArgPrefixes,))


def _config_file(argv: Sequence[str]) -> Path | None:
    """The value of the last `--config`; the parser tells what is wrong with the flag itself."""
    found = ""
    for arg, following in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        flag, equals, value = arg.partition("=")
        if flag == "--config":
            found = value if equals else following
    return Path(found) if found else None


def read_settings(path: Path, config_type: type[TrainConfig]) -> dict[str, Any]:
    """Reads a `--config` file whose names and values are those of the settings.

    Raises:
        DataError: CONFIG with the file and the setting that isn't understood.
    """
    defaults = flat(config_type())
    values = read_yaml(path)
    for name, value in values.items():
        reason = ""
        if name not in defaults or name in NOT_IN_FILES:
            reason = "no such setting"
        elif value is None and defaults[name] is not None:
            reason = "it has no value"
        elif value is not None and isinstance(value, bool) != isinstance(defaults[name], bool):
            kind = "true or false" if isinstance(defaults[name], bool) else "no truth value"
            reason = f"{value!r}; it must be {kind}"
        if reason:
            raise DataError(CONFIG, path, name, reason, fix="see --help and recipes/")
    return values


@contextlib.contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """Lets an error of the parser name the file that the flags came from."""
    try:
        yield
    except DataError as error:
        raise DataError(CONFIG, path, error.reason, fix="mend the file") from error


def _is_given(name: str, argv: Sequence[str]) -> bool:
    flag = name.replace("_", "-")
    names = {arg.partition("=")[0].replace("_", "-") for arg in argv if arg.startswith("--")}
    return bool(names & {f"--{flag}", f"--no-{flag}"})


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a flat YAML file of settings; keys may be written with `-` or `_`."""
    with os_errors(path):
        data = path.read_bytes()
    try:
        values = yaml.safe_load(data) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(CONFIG, path, f"not YAML: {error}", fix="see recipes/") from error
    if not isinstance(values, dict) or any(isinstance(v, dict | list) for v in values.values()):
        raise DataError(CONFIG, path, "not a flat list of settings", fix="see recipes/")
    return {str(name).replace("-", "_"): value for name, value in values.items()}


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """Writes settings as flags: `{"resume": True, "steps": 5}` is `--resume --steps=5`."""
    return [_flag(name.replace("_", "-"), value) for name, value in values.items()]


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def flat(config: TrainConfig) -> dict[str, Any]:
    """All settings by name, in plain values that YAML and JSON know."""
    values: dict[str, Any] = {}
    for group in (config, config.data, config.optim, config.run):
        for item in dataclasses.fields(group):
            value = getattr(group, item.name)
            if not dataclasses.is_dataclass(value):
                values[item.name] = str(value) if isinstance(value, Path) else value
    return values


def to_save(config: TrainConfig) -> dict[str, Any]:
    """The settings of a run that its config.yaml keeps; as `--config` they start the same again."""
    return {name: value for name, value in flat(config).items() if name not in NOT_SAVED}


def resolve_batch(config: C, size: int) -> C:
    """Returns the config with the global batch that `size` ranks make of `--batch-size`."""
    batch = config.optim.global_batch or config.optim.batch_size * size
    return dataclasses.replace(config, optim=dataclasses.replace(config.optim, global_batch=batch))


def check_saved(config_type: type[TrainConfig], saved: Mapping[str, Any], path: Path) -> None:
    """Raises CONFIG unless a run's config.yaml has just the settings that it should."""
    if not saved or saved.get("global_batch", 0) is None:
        raise DataError(
            CONFIG, path, "it is damaged",
            fix="bring back a copy, or start a new run with --name",
        )  # fmt: skip
    if missing := to_save(config_type()).keys() ^ saved.keys():
        raise DataError(
            CONFIG, path,
            f"it doesn't name the settings of this version: {', '.join(sorted(missing))}",
            fix="go on with the version that the run was started with, or start one with --name",
        )  # fmt: skip


def read_saved(config_type: type[C], path: Path) -> C:
    """Reads the config.yaml of a run.

    Raises:
        DataError: CONFIG when it is damaged, or of another version or task.
    """
    return parse_saved(config_type, read_yaml(path), path)


def parse_saved(config_type: type[C], saved: Mapping[str, Any], path: Path) -> C:
    """The settings in what a run's config.yaml at `path` says, as `read_saved` reads it."""
    check_saved(config_type, saved, path)
    with _told_of(path):
        return _parse(config_type, flags_of(saved), path.name)


def resumed(config: C, saved: Mapping[str, Any], given: Collection[str], path: Path) -> C:
    """Returns the settings to go on with: the saved ones, with the free ones that this call names.

    Args:
        config: this call's settings, the batch resolved.
        saved: what is in the run's config.yaml.
        given: the settings that this call names itself.
        path: of the run's config.yaml.

    Raises:
        DataError: CONFIG when one of those would change what the run computes.
    """
    asked = flat(config)
    check_saved(type(config), saved, path)
    for name in sorted(set(given) - FREE_ON_RESUME):
        # A batch a rank only matters by the batch of all ranks that it makes.
        compared, what = (
            ("global_batch", "a global batch of ") if name == "batch_size" else (name, "")
        )
        if asked[compared] != saved[compared]:
            raise DataError(
                CONFIG, "--" + name.replace("_", "-"),
                f"the run was started with {what}{saved[compared]}, now {asked[compared]}",
                fix="leave the flag out to go on, or start a new run with --name",
            )  # fmt: skip
    changed = FREE_ON_RESUME & set(given) | OF_THIS_CALL
    kept = {**saved, **{name: asked[name] for name in changed}}
    with _told_of(path):
        return _parse(type(config), flags_of(kept), path.name)
