"""Settings: defaults < --config FILE < flags, checked alike, and held fast on resume."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_tools.errors import DataError
from hvd_train import config, config_files
from hvd_train.config import CaptchaConfig, CifarConfig, TrainConfig
from hvd_train.config_files import flat, parse_config, resolve_batch, resumed
from hvd_train.optim import learning_rate


def parse(*argv: object) -> CaptchaConfig:
    return parse_config(CaptchaConfig, list(map(str, argv)), prog="captcha.py")[0]


def refusal(*argv: object) -> str:
    with pytest.raises(DataError) as caught:
        parse(*argv)
    return str(caught.value)


def given_names(*argv: object) -> set[str]:
    return set(parse_config(CaptchaConfig, list(map(str, argv)), prog="captcha.py")[1])


def yaml_file(tmp_path: Path, **values: Any) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_without_flags_all_settings_are_the_defaults() -> None:
    assert parse() == CaptchaConfig()
    assert given_names() == set()


def test_a_flag_reaches_its_setting_whatever_group_it_is_in() -> None:
    settings = parse(
        "--data", "d", "--no-shuffle", "--steps", 7, "--base-lr=0.5", "--seed", 3,
        "--runs-dir", "r", "--model", "linear", "--no-deterministic",
    )  # fmt: skip
    assert (settings.data.data, settings.data.shuffle) == (Path("d"), False)
    assert (settings.optim.steps, settings.optim.base_lr) == (7, 0.5)
    assert (settings.run.seed, settings.run.runs_dir) == (3, Path("r"))
    assert (settings.model, settings.run.deterministic) == ("linear", False)


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--seed", "0"], {"seed"}),
        (["--seed=0"], {"seed"}),
        (["--no-shuffle", "--resume"], {"shuffle", "resume"}),
        (["--base-lr", "0.006"], {"base_lr"}),
        (["--base_lr", "0.006"], {"base_lr"}),
    ],
)
def test_a_setting_counts_as_given_even_at_its_default(argv: list[str], names: set[str]) -> None:
    assert given_names(*argv) == names


def test_flags_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, seed=5, epochs=3, shuffle=False)
    settings = parse("--config", path, "--seed", 6)
    assert (settings.run.seed, settings.optim.epochs, settings.data.shuffle) == (6, 3.0, False)
    assert given_names("--config", path, "--seed", 6) == {"config", "seed", "epochs", "shuffle"}


def test_a_file_may_write_its_keys_with_dashes(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("base-lr: 1e-3\nbatch_size: 4\n")
    settings = parse("--config", path)
    assert (settings.optim.base_lr, settings.optim.batch_size) == (0.001, 4)


def test_a_flag_may_turn_back_on_what_the_file_turned_off(tmp_path: Path) -> None:
    assert parse("--config", yaml_file(tmp_path, shuffle=False), "--shuffle").data.shuffle


def test_the_file_is_checked_like_flags(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, base_lr=-1)
    assert refusal("--config", path) == (
        f"error: CONFIG: {path}: --base-lr is -1.0; it must be a positive number; mend the file"
    )


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("learning-rate: 1\n", "learning_rate: no such setting"),
        ("help: true\n", "help: no such setting"),
        ("no-shuffle: false\n", "no_shuffle: no such setting"),
        ("config: other.yaml\n", "config: no such setting"),
        ("debug: true\n", "debug: no such setting"),
        ("plan: true\n", "plan: no such setting"),
        ("shuffle:\n", "shuffle: it has no value"),
        ('shuffle: "false"\n', "shuffle: 'false'; it must be true or false"),
        ("name: yes\n", "name: True; it must be no truth value"),
    ],
)
def test_a_setting_of_the_file_that_is_not_understood_is_named(
    tmp_path: Path, text: str, where: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    expected = f"error: CONFIG: {path}:{where}; see --help and recipes/"
    assert refusal("--config", path) == expected
    assert refusal(f"--config={path}", "--steps", 3) == expected


def test_a_setting_without_value_in_the_file_is_its_default(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("steps:\nname:\n")
    assert parse("--config", path) == parse("--config", yaml_file(tmp_path))


def test_a_flag_may_depend_on_a_setting_of_the_file(tmp_path: Path) -> None:
    settings = parse("--config", yaml_file(tmp_path, model="linear"), "--init-stddev", "0.5")
    assert settings.init_stddev == 0.5


def test_a_setting_of_the_file_may_depend_on_a_flag(tmp_path: Path) -> None:
    settings = parse("--config", yaml_file(tmp_path, init_stddev=0.5), "--model", "linear")
    assert settings.init_stddev == 0.5


@pytest.mark.parametrize("saved", [{}, {"global_batch": None}])
def test_a_saved_file_without_its_settings_is_damaged(saved: dict[str, Any]) -> None:
    with pytest.raises(DataError) as caught:
        resumed(resolve_batch(parse(), 2), saved, set(), SAVED)
    assert str(caught.value) == (
        "error: CONFIG: runs/x/config.yaml: it is damaged; "
        "bring back a copy, or start a new run with --name"
    )


def test_a_saved_value_that_is_none_names_the_file() -> None:
    with pytest.raises(DataError) as caught:
        resumed(resolve_batch(parse(), 2), saved_settings(base_lr=-1.0), set(), SAVED)
    assert str(caught.value) == (
        "error: CONFIG: runs/x/config.yaml: --base-lr is -1.0; "
        "it must be a positive number; mend the file"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- 1\n- 2\n", "not a flat list of settings"),
        ("optim:\n  seed: 1\n", "not a flat list of settings"),
        ("seeds: [1, 2]\n", "not a flat list of settings"),
        ("just words\n", "not a flat list of settings"),
    ],
)
def test_a_file_that_is_no_flat_list_is_config(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    assert refusal("--config", path) == f"error: CONFIG: {path}: {reason}; see recipes/"


@pytest.mark.parametrize("data", [b"seed: [1\n", b"a: b: c\n", b"\x00", b"seed: \xff\xfe\n"])
def test_a_file_that_is_no_yaml_is_one_config_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        parse("--config", path)
    report = caught.value.report()
    assert report.startswith(f"error: CONFIG: {path}: not YAML: ")
    assert report.endswith("; see recipes/")
    assert "\n" not in report


def test_a_missing_file_is_named() -> None:
    assert refusal("--config", "/nowhere/settings.yaml") == (
        "error: INPUT: /nowhere/settings.yaml: No such file or directory; "
        "check that the path exists and its permissions"
    )


POSITIVE = [
    "batch-size", "global-batch", "epochs", "steps", "accumulate", "base-lr", "decay-epochs",
    "decay-factor", "clip-norm", "checkpoint-every", "keep-checkpoints", "early-stop",
    "max-minutes", "log-every",
]  # fmt: skip
REAL = ("epochs", "base-lr", "decay-epochs", "decay-factor", "clip-norm", "max-minutes")


@pytest.mark.parametrize("flag", POSITIVE)
@pytest.mark.parametrize("value", [0, -1])
def test_what_must_be_positive_is_refused_otherwise(flag: str, value: int) -> None:
    shown = float(value) if flag in REAL else value
    assert refusal(f"--{flag}", value) == (
        f"error: CONFIG: command line: --{flag} is {shown}; it must be a positive number; "
        "see captcha.py --help"
    )


@pytest.mark.parametrize(
    "flag", ["memory-budget", "warmup-epochs", "eval-every", "checkpoint-minutes"]
)
def test_what_must_not_be_negative_is_refused_below_0(flag: str) -> None:
    assert refusal(f"--{flag}", -1) == (
        f"error: CONFIG: command line: --{flag} is -1.0; it must not be negative; "
        "see captcha.py --help"
    )


@pytest.mark.parametrize("flag", ["momentum", "ema-decay", "label-smoothing"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_a_decay_lies_in_0_to_1(flag: str, value: float) -> None:
    assert refusal(f"--{flag}", value) == (
        f"error: CONFIG: command line: --{flag} is {value}; it must be at least 0 and below 1; "
        "see captcha.py --help"
    )


NOT_FINITE = [
    (flag, "nan")
    for flag in (*REAL, "memory-budget", "warmup-epochs", "eval-every", "momentum", "ema-decay")
]


@pytest.mark.parametrize(("flag", "value"), [*NOT_FINITE, ("epochs", "inf"), ("base-lr", "inf")])
def test_a_number_that_is_not_finite_is_config(flag: str, value: str) -> None:
    assert refusal(f"--{flag}", value).startswith(f"error: CONFIG: command line: --{flag} is ")


@pytest.mark.parametrize("value", ["a", "3,", "6,3", "0,3", "3,3", "-1", "3,inf", "nan"])
def test_decay_epochs_that_do_not_rise_are_config(value: str) -> None:
    assert refusal(f"--decay-at={value}") == (
        f"error: CONFIG: command line: --decay-at is {value}; it must be rising epochs: 30,60,80; "
        "see captcha.py --help"
    )


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--schedule", "step"], "--schedule step needs the epochs of --decay-at"),
        (["--decay-at", "1"], "--decay-at is of --schedule step; leave it out or pass that"),
        (
            ["--validation-split", "test"],
            "--validation-split is test, the split of the test at the end; name another, or leave "
            "it out and each epoch is evaluated on it",
        ),
        (
            ["--validation-split", "a", "--train-split", "a"],
            "--validation-split is a, which is trained on; name another",
        ),
        (
            ["--optimizer", "adamw", "--weight-decay-kind", "l2"],
            "--weight-decay-kind l2 is not for adamw; use --optimizer adam",
        ),
        (["--label-smoothing", "0.1"], "--label-smoothing is not for --model ctc; leave it out"),
        (
            ["--model", "linear", "--batch-norm", "local"],
            "--batch-norm is of --model ctc; leave it out or pass that",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_config(argv: list[str], reason: str) -> None:
    assert refusal(*argv) == f"error: CONFIG: command line: {reason}; see captcha.py --help"


def test_no_summaries_are_every_0_steps_and_fewer_are_config() -> None:
    assert parse("--summary-every", 0).run.summary_every == 0
    assert refusal("--summary-every", -1) == (
        "error: CONFIG: command line: --summary-every is -1; it must not be negative; "
        "see captcha.py --help"
    )


def test_a_profile_names_the_steps_from_its_start_to_before_its_stop() -> None:
    assert config.profiled_steps(parse("--profile", "10:12").run.profile) == range(10, 12)
    assert config.profiled_steps(parse().run.profile) == range(0)


@pytest.mark.parametrize("text", ["", "5", "5:", ":5", "5:5", "6:5", "a:b", "1:2:3", "1.5:2"])
def test_a_profile_of_no_steps_is_config(text: str) -> None:
    assert refusal(f"--profile={text}") == (
        f"error: CONFIG: command line: --profile is {text!r}; it must be START:STOP, as 10:20; "
        "see captcha.py --help"
    )


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_that_the_generators_do_not_take_is_config(seed: int) -> None:
    assert refusal("--seed", seed) == (
        f"error: CONFIG: command line: --seed is {seed}; it must be from 0 to 2147483647; "
        "see captcha.py --help"
    )


@pytest.mark.parametrize("seconds", ["-1.0", "4.9", "nan", "inf"])
def test_the_watchdogs_limit_is_at_least_five_seconds_or_none(seconds: str) -> None:
    assert parse("--stall-seconds", "0").run.stall_seconds == 0
    assert refusal("--stall-seconds", seconds) == (
        f"error: CONFIG: command line: --stall-seconds is {seconds}; it must be at least 5, or 0 "
        "for none; see captcha.py --help"
    )


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a"])
def test_a_run_name_is_the_name_of_one_folder(name: str) -> None:
    assert refusal("--name", name) == (
        f"error: CONFIG: command line: --name is {name!r}; it must be the name of one folder; "
        "see captcha.py --help"
    )


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--nosuch"], "Unrecognized options: --nosuch"),
        (["stray"], "Unrecognized options: stray"),
        (["--batch-size", "x"], "--batch-size is 'x'; it must be a whole number"),
        (["--steps", "x"], "--steps is 'x'; it must be a whole number"),
        (["--base-lr", "x"], "--base-lr is 'x'; it must be a number"),
        (["--clip-norm", "x"], "--clip-norm is 'x'; it must be a number"),
    ],
)
def test_what_is_not_understood_is_one_config_line(argv: list[str], reason: str) -> None:
    assert refusal(*argv) == f"error: CONFIG: command line: {reason}; see captcha.py --help"


def test_both_kinds_of_batch_size_are_refused(tmp_path: Path) -> None:
    expected = (
        "error: CONFIG: --global-batch: --batch-size is given too; "
        "give the batch of a rank or the batch of all ranks"
    )
    assert refusal("--batch-size", 4, "--global-batch", 8) == expected
    assert refusal("--global-batch=8", "--batch-size=4") == expected
    assert refusal("--global-batch", 8, "--config", yaml_file(tmp_path, batch_size=4)) == expected


@pytest.mark.parametrize(("argv", "batch"), [(["--batch-size", 5], 15), (["--global-batch", 7], 7)])
def test_the_global_batch_is_given_or_a_batch_for_each_rank(argv: list[Any], batch: int) -> None:
    assert resolve_batch(parse(*argv), 3).optim.global_batch == batch


def test_every_setting_stands_once_in_the_flat_list() -> None:
    groups = (config.DataConfig, config.OptimConfig, config.RunConfig)
    names = [item.name for group in groups for item in dataclasses.fields(group)]
    assert len(set(names)) == len(names)
    assert set(flat(CaptchaConfig())) == {*names, "model", "batch_norm", "init_stddev"}


ODD = [
    "--data", "a b/ü", "--steps", "3", "--base-lr", "1e-07", "--no-shuffle", "--no-deterministic",
    "--name", "None of it", "--runs-dir", "r", "--init-stddev", "1e-3", "--model", "linear",
    "--augment", "rotate,shift",
]  # fmt: skip


def test_saved_settings_read_back_the_same(tmp_path: Path) -> None:
    settings = resolve_batch(parse(*ODD), 3)
    path = yaml_file(tmp_path, **config_files.to_save(settings))
    assert flat(resumed(settings, config_files.read_yaml(path), set(), SAVED)) == flat(settings)


def test_the_saved_settings_start_the_same_run_again(tmp_path: Path) -> None:
    settings = resolve_batch(parse(*ODD), 3)
    path = yaml_file(tmp_path, **config_files.to_save(settings))
    again = resolve_batch(parse("--config", path, "--name", "again"), 2)
    assert config_files.to_save(again) == config_files.to_save(settings)
    assert (again.run.name, again.optim.global_batch) == ("again", 96)


SAVED = Path("runs/x/config.yaml")


def saved_settings(**changes: Any) -> dict[str, Any]:
    return {**config_files.to_save(resolve_batch(parse(), 2)), **changes}


MATHEMATICS: dict[str, Any] = {
    "model": "linear", "init_stddev": 1.0, "train_split": "test", "test_split": "train",
    "shuffle": False, "augment": "none", "global_batch": 48, "epochs": 2.0, "steps": 9,
    "optimizer": "sgd", "base_lr": 0.5, "lr_scaling": "none", "schedule": "constant",
    "decay_epochs": 2.0, "weight_decay": 0.5, "warmup_epochs": 2.0, "momentum": 0.5,
    "ema_decay": 0.5, "seed": 8, "dtype": "float64", "deterministic": False, "accumulate": 2,
    "decay_at": "1,2.5", "decay_factor": 0.5, "weight_decay_kind": "decoupled",
    "label_smoothing": 0.1, "clip_norm": 1.0, "compression": "fp16", "batch_norm": "local",
    "validation_split": "validation", "early_stop": 2, "keep_best": True, "init_from": "runs/other",
}  # fmt: skip


NEEDED = {
    "init_stddev": {"model": "linear"}, "label_smoothing": {"model": "linear"},
    "early_stop": {"validation_split": "val"}, "keep_best": {"validation_split": "val"},
    "decay_at": {"schedule": "step"},
}  # fmt: skip


def test_every_setting_is_free_on_resume_or_of_the_mathematics() -> None:
    assert set(flat(parse())) == {*config.FREE_ON_RESUME, *MATHEMATICS, "batch_size"}


@pytest.mark.parametrize("name", MATHEMATICS)
def test_a_flag_that_changes_the_mathematics_is_refused_on_resume(name: str) -> None:
    value = MATHEMATICS[name]
    saved = saved_settings()
    flag = "--" + name.replace("_", "-")
    needed = NEEDED.get(name, {})
    asked = resolve_batch(parse(*config_files.flags_of({**needed, name: value})), 2)
    with pytest.raises(DataError) as caught:
        resumed(asked, saved, {name}, SAVED)
    assert str(caught.value) == (
        f"error: CONFIG: {flag}: the run was started with {saved[name]}, now {value}; "
        "leave the flag out to go on, or start a new run with --name"
    )


def test_another_batch_a_rank_is_refused_on_resume_as_another_global_batch() -> None:
    asked = resolve_batch(parse("--batch-size", 4), 2)
    with pytest.raises(DataError) as caught:
        resumed(asked, saved_settings(), {"batch_size"}, SAVED)
    assert str(caught.value) == (
        "error: CONFIG: --batch-size: the run was started with a global batch of 64, now 8; "
        "leave the flag out to go on, or start a new run with --name"
    )


def test_a_run_goes_on_with_its_own_batch_on_other_ranks() -> None:
    asked = resolve_batch(parse("--resume"), 5)
    assert resumed(asked, saved_settings(), {"resume"}, SAVED).optim.global_batch == 64


def test_the_saved_mathematics_holds_where_no_flag_says_so() -> None:
    saved = saved_settings(seed=8, base_lr=0.5, model="linear", shuffle=False)
    settings = resumed(resolve_batch(parse("--resume"), 2), saved, {"resume"}, SAVED)
    assert config_files.to_save(settings) == saved
    assert settings.run.resume


FREE: dict[str, Any] = {
    "data": "elsewhere", "memory_budget": 0.5, "checkpoint_every": 7, "keep_checkpoints": 9,
    "checkpoint_minutes": 2.5, "max_minutes": 50.0,
    "eval_every": 0.25, "log_every": 3, "stall_seconds": 7.0, "log_all_ranks": True,
}  # fmt: skip


@pytest.mark.parametrize("name", FREE)
def test_a_free_setting_keeps_its_saved_value_on_resume(name: str) -> None:
    saved = saved_settings(**{name: FREE[name]})
    settings = resumed(resolve_batch(parse("--resume"), 2), saved, {"resume"}, SAVED)
    assert flat(settings)[name] == FREE[name]


@pytest.mark.parametrize("name", FREE)
def test_a_flag_changes_a_free_setting_on_resume(name: str) -> None:
    asked = resolve_batch(parse(*config_files.flags_of({name: FREE[name]})), 2)
    settings = resumed(asked, saved_settings(), {name}, SAVED)
    assert flat(settings)[name] == FREE[name]


def test_a_small_rate_is_not_changed_by_yaml(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, base_lr=5e-324)
    assert parse("--config", path).optim.base_lr == math.ulp(0.0)


# The tutorial's settings


def parse_cifar(*argv: object) -> CifarConfig:
    return parse_config(CifarConfig, list(map(str, argv)), prog="cifar.py")[0]


def test_cifars_defaults_are_the_tutorials() -> None:
    values = flat(parse_cifar())
    assert {name: values[name] for name in TUTORIAL} == TUTORIAL


TUTORIAL: dict[str, Any] = {
    "model": "tutorial", "image_size": 24, "augment": "distort", "batch_size": 128,
    "global_batch": None, "optimizer": "sgd", "base_lr": 0.1, "schedule": "exponential",
    "decay_epochs": 350.0, "warmup_epochs": 0.0, "weight_decay": 0.004, "ema_decay": 0.9999,
    "log_every": 10, "dtype": "float32",
}  # fmt: skip


def test_cifars_rate_falls_to_a_tenth_every_350_epochs_from_0_1_at_batch_128() -> None:
    settings = resolve_batch(parse_cifar(), 1).optim
    rates = [
        learning_rate(settings, epoch=epoch, step_epochs=128 / 50_000, total_epochs=1000.0)
        for epoch in (0.0, 349.9, 350.0, 700.0)
    ]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001])


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (
            ["--augment", "shift"],
            "--augment is shift; it must be none or one of distort, crop",
        ),
        (
            ["--augment", "crop,distort"],
            "--augment is crop,distort; it must be none or one of distort, crop",
        ),
        (["--augment", ""], "--augment is ; it must be none or one of distort, crop"),
        (["--cutout", "-1"], "--cutout is -1; it must be at least 0 and below --image-size, 24"),
        (["--cutout", "24"], "--cutout is 24; it must be at least 0 and below --image-size, 24"),
        (["--mixup", "-0.1"], "--mixup is -0.1; it must not be negative"),
        (["--mixup", "nan"], "--mixup is nan; it must not be negative"),
        (["--image-size", "0"], "--image-size is 0; it must be a positive number"),
        (["--image-size", "-3"], "--image-size is -3; it must be a positive number"),
        (["--weight-decay", "-1"], "--weight-decay is -1.0; it must not be negative"),
        (["--weight-decay", "inf"], "--weight-decay is inf; it must not be negative"),
        (["--weight-decay", "nan"], "--weight-decay is nan; it must not be negative"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_setting_that_classes_cannot_have_is_config(argv: list[str], reason: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_cifar(*argv)
    assert str(caught.value) == f"error: CONFIG: command line: {reason}; see cifar.py --help"


@pytest.mark.parametrize("flag", [["--early-stop", "2"], ["--keep-best"]])
@pytest.mark.parametrize("config_type", [CaptchaConfig, CifarConfig])
def test_what_judges_needs_a_validation_split(config_type: Any, flag: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        parse_config(config_type, flag, prog="x.py")
    assert str(caught.value) == (
        f"error: CONFIG: command line: {flag[0]} needs a split to judge by: "
        "--validation-split NAME; see x.py --help"
    )
    argv = [*flag, "--validation-split", "val"]
    parse_config(config_type, argv, prog="x.py")
    with pytest.raises(DataError) as caught:
        parse_config(config_type, [*argv, "--eval-every", "0"], prog="x.py")
    assert str(caught.value) == (
        f"error: CONFIG: command line: {flag[0]} needs evaluations during training: "
        "--eval-every above 0; see x.py --help"
    )


@pytest.mark.parametrize(
    "augment", ["distort", "shift,crop", "shift,", "none,shift", "shift,shift"]
)
def test_captchas_take_their_own_augmentations_each_once(augment: str) -> None:
    assert refusal("--augment", augment) == (
        f"error: CONFIG: command line: --augment is {augment}; it must be none or any of shift, "
        "rotate, noise, joined by commas; see captcha.py --help"
    )


def test_augmentations_of_captchas_combine_in_the_order_given() -> None:
    assert parse().data.augmentations == ("shift",)
    assert parse("--augment", "none").data.augmentations == ()
    assert parse("--augment", "noise,shift").data.augmentations == ("noise", "shift")


def test_a_task_of_ones_own_has_no_augmentation_to_name() -> None:
    assert parse_config(TrainConfig, ["--augment", "none"], prog="own.py")[0] == TrainConfig()
    with pytest.raises(DataError) as caught:
        parse_config(TrainConfig, ["--augment", "shift"], prog="own.py")
    assert str(caught.value) == (
        "error: CONFIG: command line: --augment is shift; this task has none: leave it out; "
        "see own.py --help"
    )


@pytest.mark.parametrize("augment", ["none", "distort", "crop"])
def test_classes_take_these_augmentations(augment: str) -> None:
    assert parse_cifar("--augment", augment).data.augment == augment


@pytest.mark.parametrize("name", ["image_size", "weight_decay", "cutout", "mixup"])
def test_cifars_own_mathematics_is_refused_on_resume(name: str) -> None:
    saved = config_files.to_save(resolve_batch(parse_cifar(), 2))
    asked = resolve_batch(parse_cifar(*config_files.flags_of({name: 1})), 2)
    with pytest.raises(DataError) as caught:
        resumed(asked, saved, {name}, SAVED)
    assert str(caught.value) == (
        f"error: CONFIG: --{name.replace('_', '-')}: the run was started with {saved[name]}, now "
        f"{flat(asked)[name]}; leave the flag out to go on, or start a new run with --name"
    )


def test_cifars_saved_settings_read_back_the_same(tmp_path: Path) -> None:
    flags = ("--image-size", 17, "--weight-decay", "1e-5", "--cutout", 3, "--mixup", "0.2")
    settings = resolve_batch(parse_cifar(*flags), 3)
    path = yaml_file(tmp_path, **config_files.to_save(settings))
    assert flat(resumed(settings, config_files.read_yaml(path), set(), SAVED)) == flat(settings)
