"""Options from YAML and the command line: the same names, the same values, and errors that say what to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import tyro
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tlm import config
from agentgym_tlm.errors import ConfigError


class Kernel(Enum):
    UKL = "ukl"
    LSIF = "lsif"


@dataclass(frozen=True, kw_only=True)
class World:
    """Where to play."""

    env: str = "ALFWorld-v0"
    """Gymnasium id."""
    data_dir: Path | None = None
    """Folder of the data."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """More."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Train few weights."""

    rank: int = 8
    """Rank."""
    alpha: int = 16
    """Scale."""


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """How to learn."""

    learning_rate: float = 1e-3
    """Peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Moments."""
    kernel: Kernel = Kernel.UKL
    """Loss."""
    adapter: Adapter | None = None
    """Optional."""
    output_dir: Annotated[str, tyro.conf.Suppress] = "run"
    """Set by programs."""

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ConfigError(f"learning_rate={self.learning_rate} must be positive")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Do the job."""

    world: tyro.conf.OmitArgPrefixes[World] = World()
    trainer: Literal["sft", "tlm-dre"] = "tlm-dre"
    """Which."""
    seed: int = 0
    """Seed."""
    max_grad_norm: float | None = 1.0
    """Clip."""
    splits: tuple[str, ...] = ("valid_seen",)
    """Where to evaluate."""
    resume: bool = False
    """Go on."""
    sft: Optimiser = Optimiser(learning_rate=3e-3)
    """Imitation."""


def load(tmp_path: Path, text: str) -> Job:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return config.load(Job(), path)


def parse(*argv: str) -> Job:
    return config.parse(Job, argv, prog="job")


def test_file_overrides_defaults_and_flags_override_the_file(tmp_path: Path) -> None:
    """Whoever keeps a YAML per experiment varies one flag on the command line."""
    path = tmp_path / "job.yaml"
    path.write_text("seed: 3\nsft: {learning-rate: 0.5}\nsplits: [valid_unseen, valid_seen]\n")
    job = parse("--config", str(path), "--seed", "4", "--sft.betas", "0.1", "0.2")
    assert job == Job(seed=4, splits=("valid_unseen", "valid_seen"), sft=Optimiser(learning_rate=0.5, betas=(0.1, 0.2)))
    assert parse(f"--config={path}").seed == 3


def test_group_keeps_its_parents_defaults(tmp_path: Path) -> None:
    """Setting one option of a group must not reset the others to the class's own defaults."""
    assert load(tmp_path, "sft: {kernel: lsif}").sft == Optimiser(learning_rate=3e-3, kernel=Kernel.LSIF)


def test_optional_group_is_off_until_one_of_its_options_is_given(tmp_path: Path) -> None:
    """LoRA is off by default and needs no option of its own to be switched on."""
    assert parse("--seed", "1").sft.adapter is None
    assert parse("--sft.adapter.rank", "4").sft.adapter == Adapter(rank=4)
    assert parse("--sft.adapter.rank=8").sft.adapter == Adapter()
    assert load(tmp_path, "sft: {adapter: {alpha: 2}}").sft.adapter == Adapter(alpha=2)
    assert load(tmp_path, "sft: {adapter: null}").sft.adapter is None
    assert parse("--config", str(tmp_path / "job.yaml"), "--sft.betas", "0", "0").sft.adapter is None


def test_options_of_a_flat_group_need_no_prefix(tmp_path: Path) -> None:
    job = load(tmp_path, "env: ScienceWorld-v0\ndata_dir: /data\nenv_kwargs: {engine: textworld}")
    assert job.world == World(env="ScienceWorld-v0", data_dir=Path("/data"), env_kwargs={"engine": "textworld"})
    assert parse("--env", "ScienceWorld-v0", "--data-dir", "/data", "--env-kwargs", "engine=textworld") == job


def test_dictionary_options_are_read_as_yaml() -> None:
    assert parse("--env-kwargs", "num-games=20", "reward=[0.5, 1e0]").world.env_kwargs == {
        "num_games": 20,
        "reward": [0.5, "1e0"],
    }


@pytest.mark.parametrize("spelling", ["max_grad_norm", "max-grad-norm"])
def test_underscore_and_hyphen_mean_the_same(tmp_path: Path, spelling: str) -> None:
    assert load(tmp_path, f"{spelling}: 2").max_grad_norm == 2.0
    assert parse(f"--{spelling}", "2").max_grad_norm == 2.0


@pytest.mark.parametrize(("text", "expected"), [("1e-4", 1e-4), ("1", 1.0), ("null", None), (".inf", float("inf"))])
def test_numbers_as_people_write_them(tmp_path: Path, text: str, expected: float | None) -> None:
    """YAML reads 1e-4 as text: a learning rate must not fail on that."""
    assert load(tmp_path, f"max_grad_norm: {text}").max_grad_norm == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead: 1", "there is no option sead; did you mean seed"),
        ("learning_rate: 1", "there is no option learning_rate; did you mean sft.learning_rate"),
        ("sft: {learning_rates: 1}", "there is no option sft.learning_rates; did you mean sft.learning_rate"),
        ("sft: {output_dir: x}", "there is no option sft.output_dir"),
        ("seed: soon", "seed: expected an integer, got 'soon'"),
        ("seed: true", "seed: expected an integer, got true"),
        ("seed: 1.5", "seed: expected an integer, got 1.5"),
        ("resume: 1", "resume: expected true or false, got 1"),
        ("trainer: ppo", "trainer: expected one of sft, tlm-dre, got 'ppo'"),
        ("env: no", "env: expected text, got false (quote it if text is meant)"),
        ("sft: 3", "sft: expected options as 'key: value' lines, got 3"),
        ("sft: {kernel: kl}", "sft.kernel: expected one of ukl, lsif, got 'kl'"),
        ("sft: {betas: [0.1]}", "sft.betas: expected a list"),
        ("splits: valid_seen", "splits: expected a list, each item text, got 'valid_seen'"),
        ("sft: {learning_rate: 0}", "learning_rate=0.0 must be positive"),
        ("max-grad-norm: 1\nmax_grad_norm: 2", "max_grad_norm is given twice"),
        ("- seed", "expected options as 'key: value' lines"),
        ("seed: [", "is not YAML"),
    ],
)
def test_mistake_in_a_file_names_file_key_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert message in str(error.value)
    assert "job.yaml" in str(error.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file"):
        parse("--config", str(tmp_path / "nowhere.yaml"))


def test_differences_are_named_as_options() -> None:
    """They are what a user is told when a run folder holds another run."""
    job = Job(sft=Optimiser(adapter=Adapter(rank=4)), world=World(env_kwargs={"engine": "native"}))
    assert config.differences(job, job) == {}
    assert config.differences(Job(), Job(seed=1, max_grad_norm=1)) == {"seed": (0, 1)}
    assert config.differences(Job(), Job(sft=Optimiser(adapter=Adapter())))["sft.adapter.rank"] == (None, 8)


def test_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "# nothing yet\n") == Job()


def test_wrong_flag_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        parse("--sft.learning-rates", "1")
    assert error.value.code == 2
    assert "--sft.learning-rate" in capsys.readouterr().err


def test_option_for_programs_only_is_no_flag_and_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that the job sets itself must not look as if it could be given."""
    with pytest.raises(SystemExit):
        parse("--sft.output-dir", "x")
    assert "output-dir" in capsys.readouterr().err
    assert "output_dir" not in config.dump(Job())
    assert parse().sft.output_dir == "run"


text = st.text(st.characters(codec="utf-8"), max_size=8)
number = st.floats(allow_nan=False)


@settings(deadline=None, max_examples=50)
@given(
    st.builds(
        Job,
        world=st.builds(
            World,
            env=text,
            data_dir=st.none() | st.builds(Path, text),
            env_kwargs=st.dictionaries(st.text("abc", min_size=1), st.integers() | text | st.lists(number)),
        ),
        trainer=st.sampled_from(["sft", "tlm-dre"]),
        seed=st.integers(),
        max_grad_norm=st.none() | number,
        splits=st.lists(text).map(tuple),
        resume=st.booleans(),
        sft=st.builds(
            Optimiser,
            learning_rate=st.floats(min_value=1e-12),
            betas=st.tuples(number, number),
            kernel=st.sampled_from(Kernel),
            adapter=st.none() | st.builds(Adapter, rank=st.integers()),
        ),
    )
)
def test_dumped_options_load_as_equal_options(tmp_path_factory: pytest.TempPathFactory, job: Job) -> None:
    """The config.yaml of a run folder repeats the run, whatever the defaults are by then."""
    path = tmp_path_factory.mktemp("dump") / "config.yaml"
    path.write_text(config.dump(job), encoding="utf-8")
    assert config.load(Job(seed=99, sft=Optimiser(learning_rate=7.0)), path) == job
    assert parse("--config", str(path)) == job
