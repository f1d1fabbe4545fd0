from pathlib import Path

import pytest

from data_tools import datasets
from data_tools.errors import CONFIG, DataError

HOW = ["data_tools make-captcha images", "data_tools captcha-to-tfrecord images labels.csv set"]
FIX = f"make one: {HOW[0]}; {HOW[1]}"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HVD_TRAIN_DATA", raising=False)


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def locate(flag: Path | None = None) -> Path:
    return datasets.locate("captcha", flag, HOW)


def refused(flag: Path | None = None) -> str:
    with pytest.raises(DataError) as caught:
        locate(flag)
    assert caught.value.kind is CONFIG
    return str(caught.value)


def test_the_flag_comes_before_the_variable_and_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "datasets/captcha")
    monkeypatch.setenv("HVD_TRAIN_DATA", str(make(tmp_path / "variable")))
    assert locate(make(tmp_path / "flag")) == tmp_path / "flag"


def test_the_variable_comes_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "datasets/captcha")
    monkeypatch.setenv("HVD_TRAIN_DATA", str(make(tmp_path / "variable")))
    assert locate() == tmp_path / "variable"


def test_the_default_is_datasets_name_in_the_current_folder(tmp_path: Path) -> None:
    make(tmp_path / "datasets/captcha")
    assert locate().resolve() == tmp_path / "datasets/captcha"


def test_an_empty_variable_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "datasets/captcha")
    monkeypatch.setenv("HVD_TRAIN_DATA", "")
    assert locate().resolve() == tmp_path / "datasets/captcha"


def test_a_missing_default_prints_the_commands_that_make_it() -> None:
    assert refused() == f"error: CONFIG: datasets/captcha: no data set there; {FIX}"


def test_a_missing_flag_is_not_replaced_by_a_data_set_that_exists(tmp_path: Path) -> None:
    make(tmp_path / "datasets/captcha")
    assert refused(Path("absent")) == f"error: CONFIG: absent: no data set there; {FIX}"


def test_a_missing_variable_is_not_replaced_by_a_data_set_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "datasets/captcha")
    monkeypatch.setenv("HVD_TRAIN_DATA", "absent")
    assert refused() == f"error: CONFIG: absent: no data set there; {FIX}"


def test_a_file_in_place_of_the_folder_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused(Path("file")) == f"error: CONFIG: file: no data set there; {FIX}"


def test_an_unfinished_conversion_beside_it_is_mentioned(tmp_path: Path) -> None:
    make(tmp_path / "datasets/captcha.incomplete")
    assert refused() == (
        "error: CONFIG: datasets/captcha: no data set there (datasets/captcha.incomplete is what "
        f"a conversion that didn't finish left); {FIX}"
    )


def test_a_set_that_can_be_downloaded_is_made_in_its_default_place(tmp_path: Path) -> None:
    made = datasets.locate("cifar10", None, HOW, lambda folder: folder.mkdir(parents=True))
    assert made.resolve() == tmp_path / "datasets" / "cifar10"
    assert made.is_dir()


@pytest.mark.parametrize("where", ["flag", "variable"])
def test_a_folder_that_the_user_names_is_never_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    named = tmp_path / "named"
    if where == "variable":
        monkeypatch.setenv("HVD_TRAIN_DATA", str(named))
    with pytest.raises(DataError) as caught:
        datasets.locate("cifar10", named if where == "flag" else None, HOW, Path.mkdir)
    assert str(caught.value) == f"error: CONFIG: {named}: no data set there; {FIX}"
    assert not named.exists()


def test_without_a_network_the_commands_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "datasets" / "cifar10"
    url = "https://127.0.0.1:9/cifar.tar.gz"
    with pytest.raises(DataError) as caught:
        datasets.make_cifar10(folder, url)
    message = str(caught.value)
    assert message.startswith(
        f"error: CONFIG: {folder}: no data set there, and downloading failed: {url}: "
        "Connection refused; "
    )
    assert message.endswith(
        "; or make one: data_tools download cifar10 cifar-10-binary; "
        "data_tools cifar-to-tfrecord cifar-10-binary datasets/cifar10"
    )


def test_a_file_in_the_place_of_the_set_is_told_before_anything_is_downloaded(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cifar10"
    folder.write_text("no folder")
    with pytest.raises(DataError) as caught:
        datasets.make_cifar10(folder, "https://127.0.0.1:9/cifar.tar.gz")
    assert str(caught.value) == f"error: CONFIG: {folder}: it is a file; choose another folder"


def test_damaged_binary_files_are_told_as_such(tmp_path: Path) -> None:
    binary = make(tmp_path / "cifar-10-binary")
    (binary / "data_batch_1.bin").write_bytes(bytes(3072))
    with pytest.raises(DataError) as caught:
        datasets.make_cifar10(tmp_path / "cifar10")
    assert str(caught.value) == (
        f"error: INPUT: {binary / 'data_batch_1.bin'}: 3072 bytes are not whole records of 3073: "
        "3072 bytes left over; the file is cut short or damaged, get it again"
    )
