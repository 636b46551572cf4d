"""Project, zone, bucket and pod are checked before anything starts."""

from pathlib import Path

import pytest
import yaml
from snakemake.cli import parse_args

from snakemake_executor_plugin_tpu.__main__ import parse
from tests.shell import ROOT
from trm.errors import UserError
from trm.pipeline.cloud import VARIABLES, cloud_settings, tpu_prices
from trm.pipeline.settings import Settings

GOOD = {
    "project": "my-project-1",
    "zone": "us-central2-b",
    "bucket": "gs://my-bucket/trm/",
    "pod": "trm-study",
}
SETTINGS = {VARIABLES[name]: value for name, value in GOOD.items()}
"""The same as environment variables."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def good(monkeypatch):
    """Settings in the environment."""
    monkeypatch.chdir(ROOT)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


def write(tmp_path, settings):
    path = tmp_path / "cloud.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    return path


def test_file_and_environment(tmp_path, monkeypatch):
    path = write(tmp_path, GOOD)
    assert cloud_settings(path)["bucket"] == "gs://my-bucket/trm"
    monkeypatch.setenv("TRM_BUCKET", "gs://other")
    assert cloud_settings(path)["bucket"] == "gs://other"


def test_prices_are_those_of_the_plan(good):
    assert tpu_prices(spot=True)["v4"] == 0.9215
    assert tpu_prices(spot=False) == {"v4": 3.22, "v5litepod": 1.2, "v6e": 2.7}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("project", "null", "set project (GOOGLE_CLOUD_PROJECT) there or in the environment"),
        ("project", "My Project", "project is 'My Project', but must be 6 to 30"),
        ("zone", "us-central2", "zone is 'us-central2', but must be a zone such as"),
        ("bucket", "my-bucket", "bucket is 'my-bucket', but must be gs://"),
        ("bucket", "'gs://b$(reboot)'", "must be gs://bucket"),
        ("pod", "'a; rm'", "pod is 'a; rm'"),
        ("buckets", "x", "unknown key 'buckets'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, name, value, sentence):
    path = write(tmp_path, GOOD | {name: value})
    with pytest.raises(UserError) as caught:
        cloud_settings(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("profile", ["tpu", "pod"])
def test_a_setting_of_the_command_line_leaves_the_bucket_alone(profile, good):
    _, args = parse_args(["--profile", f"profiles/{profile}", "--config", "experiments=baseline"])
    config = {}
    for file in args.configfile:
        config |= yaml.safe_load(Path(file).read_text())
    assert config["storage_prefix"].rstrip("/") == GOOD["bucket"].rstrip("/")
    assert "storage_prefix" not in str(args.config)  # which would replace it


def read_profile():
    return parse(["status", "--profile", "profiles/tpu"])[1]


def test_the_profile_asks_for_weights_and_biases_if_asked(good, monkeypatch):
    profile, locks = ROOT / "profiles/tpu", ROOT / "envs/tpu"
    assert read_profile().requirements == "envs/tpu/requirements.lock"
    monkeypatch.setenv("TRM_WANDB", "1")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UserError, match="needs WANDB_API_KEY in the environment"):
        cloud_settings()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    with_key = read_profile()
    assert with_key.requirements == "envs/tpu/requirements.lock envs/tpu/wandb.lock"
    assert "WANDB_API_KEY" in with_key.forward_env.split()
    words = Settings.model_validate(yaml.safe_load((profile / "wandb.yaml").read_text()))
    assert words.set == {"runtime.wandb": "online"}  # not part of a run's identity
    assert "wandb==" in (locks / "wandb.lock").read_text()
    base = (locks / "requirements.lock").read_text()
    assert not any(name in base for name in ("nvidia", "triton"))
