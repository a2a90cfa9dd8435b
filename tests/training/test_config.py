"""A configuration is right, or it is refused in one line that says what, where, and what is allowed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from proving_ground.training.config import KEYS, Config, ConfigError, describe, from_dict, load

CONFIGS = Path(__file__).parents[2] / "training" / "configs"


def test_the_environment_overrides_the_file_and_set_overrides_both(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('model = "stocks"\nlr = 1\nseed = 1\nsteps = 5\n')
    config = load(
        file, {"PROVING_GROUND_LR": "0.5", "PROVING_GROUND_SEED": "2", "PATH": "x"}, ["seed=3", "resume = false"]
    )
    assert (config.model, config.lr, config.seed, config.steps, config.resume) == ("stocks", 0.5, 3, 5, False)


def test_yaml_means_the_same_as_toml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('model = "stocks"\nlr = 0.5\nresume = false\n')
    (tmp_path / "a.yaml").write_text("model: stocks\nlr: 0.5\nresume: false\n")
    assert load(tmp_path / "a.toml") == load(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = ", "a.toml: Invalid value"),
        ("lrr = 1", "unknown key 'lrr'; allowed: model, size, data"),
        ('lr = "x"', "lr = 'x': must be a number"),
        ("lr = nan", "lr = nan: must be a number"),
        ("lr = 0", "lr = 0: must be above 0"),
        ("steps = 1.5", "steps = 1.5: must be a whole number"),
        ("steps = true", "steps = True: must be a whole number"),
        ("resume = 1", "resume = 1: must be true or false"),
        ("global_batch = 0", "global_batch = 0: must be at least 1"),
        ('model = "gpt"', "model = 'gpt': must be one of digits, stocks, resnet50"),
        ('model = "paced"', "needs a profile"),
        ('model = "paced"\nprofile = "x"\nclip_norm = 1.0', "no gradients to clip"),
        ("sync_batchnorm = true", "needs norm = 'batch' and a model that has batch statistics"),
        ("checkpoint_every = 5", "needs a checkpoint_dir"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "a.toml")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("environ", "sets", "words"),
    [
        ({"PROVING_GROUND_STEPS": "many"}, [], "PROVING_GROUND_STEPS: steps = 'many': must be a whole number"),
        ({}, ["steps"], "--set steps: must be key=value"),
        ({}, ["stepz=1"], "unknown key 'stepz'"),
        ({}, ["resume=maybe"], "resume = 'maybe': must be true or false"),
    ],
)
def test_overrides_are_checked_too(environ: dict[str, str], sets: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(None, environ, sets)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{}", "must end in .toml, .yaml or .yml"),
        ("a.yaml", "- 1", "must be a table"),
        ("a.yaml", "a: [", "a.yaml: while parsing"),
    ],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize("file", sorted(CONFIGS.iterdir()), ids=lambda file: file.name)
def test_shipped_configs_are_right(file: Path) -> None:
    assert load(file).model in file.name or "paced" in file.name


def test_a_config_is_frozen_and_every_key_is_explained() -> None:
    with pytest.raises(FrozenInstanceError):
        from_dict({}).lr = 1  # type: ignore[misc]
    assert all(f"  {name} " in describe() for name in KEYS)
    assert Config() == from_dict({})


def test_the_harness_can_read_configs_and_events_without_torch() -> None:
    code = "import sys; from proving_ground.training import __main__, config, events; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
