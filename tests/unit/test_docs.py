"""The pages link to what exists, and name no command or flag that there isn't."""

import dataclasses
import re
from pathlib import Path

import pytest

from data_tools import cli as data_tools_cli
from data_tools import flags
from hvd_train import cli
from hvd_train.config import CaptchaConfig, CifarConfig
from hvd_train.config_files import flat

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OF_LAUNCHERS = {
    "--gloo", "--hostfile", "--mca", "--oversubscribe", "--network-interface", "--nodes",
    "--ntasks-per-node", "--time", "--signal",
}  # fmt: skip


def own_flags() -> set[str]:
    settings = {*flat(CaptchaConfig()), *flat(CifarConfig())}
    commands = [item for item in vars(flags).values() if dataclasses.is_dataclass(item)]
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
    assert set(re.findall(r"`hvd_train ([a-z]+)", text)) <= set(cli.COMMANDS)
    assert set(re.findall(r"`data_tools ([a-z][a-z0-9-]+)", text)) <= set(data_tools_cli.COMMANDS)
