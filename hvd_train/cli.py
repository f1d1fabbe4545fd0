"""The command `hvd_train`: one subcommand for each thing to do."""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from data_tools import __version__, launch_env
from data_tools.errors import CONFIG, DataError, parse_flags, run_main, unknown_command
from hvd_train import captcha, cifar

TRAINERS = {
    "cifar": (cifar.main, "train the CIFAR-10 tutorial's network on one or many ranks"),
    "captcha": (captcha.main, "train a captcha recogniser on one or many ranks"),
}
"""Command and summary."""
OVER_RANKS: dict[str, tuple[str, str, str]] = {
    "evaluate": ("hvd_train.evaluate", "Evaluate", "evaluate a run's checkpoints, old or new"),
}
"""Module, flags and summary of what one or many ranks do."""
ALONE: dict[str, tuple[str, str, str]] = {
    "predict": ("hvd_train.predict", "Predict", "read images with a trained run"),
    "report": ("hvd_train.report", "Report", "write a run's report.html, one page that shows all"),
    "compare": ("hvd_train.compare", "Compare", "print a table of runs and draw their curves"),
    "export": ("hvd_train.export", "Export", "write a trained model for other programs"),
}
"""The same of what one process does."""
TOOLS = {
    "doctor": ("hvd_train.doctor", "Doctor", "find out why training doesn't start on some hosts"),
    "hosts": ("hvd_train.hosts", "Hosts", "tell a job's hosts in the form of each launcher"),
    "launch": ("hvd_train.launch", "Launch", "keep a run going on hosts that come and go"),
}
"""The same of what needs no TensorFlow."""
STARTING = {"doctor": "launch command", "launch": "command"}
"""What those of them start, which stands after `--`."""
COMMANDS = {**OVER_RANKS, **ALONE, **TOOLS}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand that the command line names and returns the exit code."""
    name, *words = (sys.argv[1:] if argv is None else argv) or [""]
    if name in TRAINERS:
        return TRAINERS[name][0](words, prog=f"hvd_train {name}")
    return run_main(functools.partial(_run, name, words), debug="--debug" in words)


def usage() -> str:
    """The help of the command itself."""
    summaries = {name: entry[-1] for name, entry in {**TRAINERS, **COMMANDS}.items()}
    width = max(map(len, summaries))
    lines = [f"  {name:{width}}  {summary}" for name, summary in summaries.items()]
    return "\n".join([
        "usage: hvd_train COMMAND [FLAGS]", "", "commands:", *lines, "",
        "hvd_train COMMAND --help shows the flags of a command.",
    ])  # fmt: skip


def _run(name: str, words: Sequence[str]) -> None:
    if name in ("-h", "--help", "--version"):
        if launch_env.is_first_rank():
            print(f"hvd_train {__version__}" if name == "--version" else usage())
        return
    if name not in COMMANDS:
        raise unknown_command(name, [*TRAINERS, *COMMANDS])
    from hvd_train import flags, start  # and with it tyro, which `hvd_train --help` doesn't need

    module, flags_name, _ = COMMANDS[name]
    prog = f"hvd_train {name}"
    parse = functools.partial(parse_flags, getattr(flags, flags_name), prog=prog, argv=words)
    if name in TOOLS:
        importlib.import_module(module).main(_or_dashes(parse, name, words))
    elif name in OVER_RANKS:
        start.over_ranks(parse, words, module)
    else:
        start.alone(parse, prog, module)


def _or_dashes(parse: Callable[[], Any], name: str, words: Sequence[str]) -> Any:
    """Parses; flags of a command to start, which are taken for the tool's own, are told to be so.

    The command starts at the first word that is neither a flag nor may be a flag's value.
    """
    try:
        return parse()
    except DataError as error:
        before = ["", *words]
        starts = [
            word
            for word, last in zip(words, before, strict=False)
            if not word.startswith("-") and (last == "--debug" or not last.startswith("-"))
        ]
        is_flag = error.reason.startswith("Unrecognized options")
        if name not in STARTING or "--" in words or not starts or not is_flag:
            raise
        raise DataError(
            CONFIG, error.where, error.reason,
            fix=f"put -- before the {STARTING[name]}: -- {starts[0]} ...",
        ) from error  # fmt: skip
