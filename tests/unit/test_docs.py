"""The pages link to what exists, and name no command or flag that there isn't."""

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_tools import cli as data_tools_cli
from data_tools import flags as data_tools_flags
from data_tools.errors import parse_flags
from hvd_train import cli
from hvd_train import flags as hvd_train_flags
from hvd_train.config import CaptchaConfig, CifarConfig, TrainConfig
from hvd_train.config_files import flat, parse_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OF_LAUNCHERS = {
    "--gloo", "--hostfile", "--mca", "--oversubscribe", "--network-interface", "--nodes",
    "--ntasks-per-node", "--time", "--signal", "--mpi", "--requeue", "--gpus-per-task",
    "--no-install-recommends", "--bind-to", "--network-interfaces",
}  # fmt: skip


def own_flags() -> set[str]:
    settings = {*flat(CaptchaConfig()), *flat(CifarConfig())}
    modules = (data_tools_flags, hvd_train_flags)
    commands = [x for m in modules for x in vars(m).values() if dataclasses.is_dataclass(x)]
    names = settings | {field.name for item in commands for field in dataclasses.fields(item)}
    return {"--" + name.replace("_", "-") for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_flags_of_the_pages_exist() -> None:
    text = (ROOT / "docs" / "clusters.md").read_text() + (ROOT / "docs" / "your-own.md").read_text()
    # Of the tables of migrating.md the last column, since the first names what was.
    for row in (ROOT / "docs" / "migrating.md").read_text().splitlines():
        text += row.rpartition(" | ")[2] if row.startswith("|") else row
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert len(named) > 30
    assert named - own_flags() - OF_LAUNCHERS - {"--gpu", "--help"} == set()


def test_the_commands_of_the_pages_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"`hvd_train ([a-z]+)", text)) <= {*cli.TRAINERS, *cli.COMMANDS}
    assert set(re.findall(r"`data_tools ([a-z][a-z0-9-]+)", text)) <= set(data_tools_cli.COMMANDS)


CONFIGS = {"captcha": CaptchaConfig, "cifar": CifarConfig, "photos": TrainConfig}
COMMAND = re.compile(r"(?:.* )?(data_tools|hvd_train|python (?:hvd_train/)?(\w+)\.py)(?: (.*))?")


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields "data_tools" or the settings' name, and the words behind it, of whole commands."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    for line in [
        *lines,
        *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)),
    ]:
        match = COMMAND.fullmatch(line.partition("#")[0].strip())
        if match is None or "..." in line:
            continue
        program, script, rest = match.groups()
        words = shlex.split(rest or "")
        if program == "hvd_train":
            script, *words = words or [""]
        if script in (None, *CONFIGS) and "--help" not in words:
            yield script or program, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_the_pages_are_understood(page: Path) -> None:
    for program, words in commands(page.read_text()):
        if program in CONFIGS:
            parse_config(CONFIGS[program], words, prog=program)
        elif len(words) > 1:  # one word names the command only
            _, name, _ = data_tools_cli.COMMANDS[words[0]]
            parse_flags(getattr(data_tools_flags, name), prog=words[0], argv=words[1:])


def test_the_errors_of_the_pages_are_those_of_the_program() -> None:
    sources = [*ROOT.glob("data_tools/**/*.py"), *ROOT.glob("hvd_train/**/*.py"), ROOT / "Makefile"]
    joined = " ".join(source.read_text() for source in sources)
    joined = re.sub(r'"\s*\n\s*f?"', "", joined)  # parts of one string
    rows = re.findall(r"^\| `error: (.*?)` ", (ROOT / "docs/troubleshooting.md").read_text(), re.M)
    assert len(rows) > 12
    for row in rows:
        words = row.split()
        windows = [" ".join(words[i : i + 3]) for i in range(len(words) - 2)]
        assert any(window in joined for window in windows), row


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    found = [command for page in PAGES for command in commands(page.read_text())]
    preview = ["preview", "datasets/photos", "--image", "photos.png"]
    download = ["download", "cifar10", "cifar-10-binary"]
    assert [("data_tools", words) in found for words in (preview, download)] == [True, True]
    assert sum(program in CONFIGS for program, _ in found) > 20
