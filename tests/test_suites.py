"""Named test suites: what they are, for whom they are out of domain, and how a policy is played on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import Qwen2Config

from agentgym_tlm import suites
from agentgym_tlm.cli import main
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.envs.scienceworld.protocols import find_protocol
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.policies.tiny import build_tiny, tokenizer_texts
from agentgym_tlm.rollout import rollout
from agentgym_tlm.suites import SUITES, find_suites, held_out
from agentgym_tlm.trajectory import read_trajectories

ALFWORLD = EnvArgs(env="ALFWorld-v0", data_dir="embedded")


def test_every_suite_is_documented() -> None:
    """The table at the head of the module is the one place to read what there is."""
    assert suites.__doc__ is not None
    kinds = {name if name.partition("-")[0] not in ("type", "topic") else name.partition("-")[0] for name in SUITES}
    for kind in kinds:
        assert f"``{kind}" in suites.__doc__


def test_every_alfworld_suite_has_tasks() -> None:
    types = set()
    for suite in SUITES.values():
        if suite.env in (None, "ALFWorld-v0"):
            manifest = suite.envs(ALFWORLD).manifest(suite.split)
            assert len(manifest) > 0
            if suite.name.startswith("type-"):
                types |= set(manifest)
    assert types == set(ALFWORLD.manifest("valid_unseen"))


def test_topics_of_scienceworld_are_all_its_tasks() -> None:
    topics = [suite.env_kwargs["tasks"] for name, suite in SUITES.items() if name.startswith("topic-")]
    names = [name for topic in topics for name in topic]
    assert len(names) == len(set(names)) == 30


def test_out_of_domain_is_what_training_did_not_have() -> None:
    heat = SUITES["type-heat"]
    without = held_out(ALFWORLD, "type-heat")
    assert heat.out_of_domain(without)
    assert not heat.out_of_domain(ALFWORLD)
    assert not SUITES["type-cool"].out_of_domain(without)
    assert SUITES["renamed"].out_of_domain(ALFWORLD)
    assert not SUITES["put"].out_of_domain(EnvArgs(env_kwargs={"action_style": "put"}))
    assert SUITES["hotpotqa"].out_of_domain(ALFWORLD)
    assert not SUITES["alfworld"].out_of_domain(ALFWORLD)
    assert not SUITES["unseen"].out_of_domain(ALFWORLD)


def test_held_out_tasks_are_not_in_training_and_are_the_suite() -> None:
    without = held_out(ALFWORLD, "type-heat")
    assert not any("pick_heat" in task for task in without.manifest("train"))
    assert all("pick_heat" in task for task in SUITES["type-heat"].envs(without).manifest("valid_unseen"))


def test_holding_a_topic_out_adds_no_other_tasks() -> None:
    """ScienceWorld's protocol has nine tasks: the others are not played because one topic is not."""
    short = {"find-living-thing", "find-non-living-thing", "find-plant", "find-animal"}
    without = held_out(EnvArgs(env="ScienceWorld-v0"), "topic-classification").env_kwargs["tasks"]
    assert set(without) == set(find_protocol("short").tasks) - short
    full = held_out(EnvArgs(env="ScienceWorld-v0", env_kwargs={"protocol": "full"}), "topic-classification")
    assert len(full.env_kwargs["tasks"]) == 30 - len(short)
    with pytest.raises(ConfigError, match="training has none of its tasks; test it with --suites topic-genetics"):
        held_out(EnvArgs(env="ScienceWorld-v0"), "topic-genetics")
    assert SUITES["topic-genetics"].out_of_domain(EnvArgs(env="ScienceWorld-v0"))
    assert not SUITES["topic-classification"].out_of_domain(EnvArgs(env="ScienceWorld-v0"))


def test_options_hold_for_the_environment_that_a_policy_remembers(tmp_path: Path) -> None:
    """It is not named again on the command line, and its data folder and step limit are not forgotten for that."""
    EnvArgs(env="HotpotQA-v0", env_kwargs={"compat": "react"}).remember(tmp_path)
    given = EnvArgs(data_dir="questions", max_episode_steps=3)
    assert given.trained_on(tmp_path) == replace(given, env="HotpotQA-v0", env_kwargs={"compat": "react"})


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="no suite 'sean'"):
        find_suites(["sean"])
    with pytest.raises(ConfigError, match="each once"):
        find_suites(["seen", "seen"])
    with pytest.raises(ConfigError, match="cannot be held out"):
        held_out(ALFWORLD, "topic-matter")
    with pytest.raises(ConfigError, match="choose the task_types already"):
        held_out(EnvArgs(env_kwargs={"task_types": ["pick_and_place_simple"]}), "type-heat")
    with pytest.raises(ConfigError, match="one of ScienceWorld-v0, not of ALFWorld-v0"):
        SUITES["topic-matter"].envs(ALFWORLD)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained policy that knows the words of some games."""
    expert = rollout(ExpertPolicy(), "ALFWorld-v0", ALFWORLD.manifest("train").take(40), env_kwargs=ALFWORLD.options)
    made = build_tiny(tokenizer_texts(expert), hidden_size=16, layers=1, heads=1, max_new_tokens=8)
    assert isinstance(made.model.config, Qwen2Config)
    folder = tmp_path_factory.mktemp("policy")
    made.save(folder)
    ALFWORLD.remember(folder)
    return folder


def test_a_policy_is_evaluated_on_suites(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each by its name in the table, with what the policy could not read."""
    options = ["--policy", str(policy), "--limit", "2", "--max-episode-steps", "2", "--data-dir", "embedded"]
    argv = ["eval", *options, "--suites", "unseen", "type-heat", "renamed", "--output-dir", str(tmp_path)]
    assert main(argv) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [result["split"] for result in results] == ["unseen", "type-heat", "renamed"]
    heat = list(read_trajectories(tmp_path / "type-heat" / "valid_unseen.jsonl"))
    assert {t.task_type for t in heat} == {"pick_heat_then_place_in_recep"}
    out = capsys.readouterr().out
    assert "renamed: out of domain for a policy trained on ALFWorld-v0" in out
    shares = {
        line.partition(":")[0]: float(line.split(": ")[1].split("%")[0])
        for line in out.splitlines()
        if "does not know" in line
    }
    assert shares["renamed"] > 10 > shares.get("unseen", 0.0)
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "6 episodes of 3 turn logs" in page
    assert "ALFWorld renamed" in page
    assert main(argv) == 0  # and goes on in the same folders


def test_suites_and_splits_exclude_each_other(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "--policy", str(policy), "--suites", "seen", "--splits", "valid_seen"])
    assert "leave out --splits" in " ".join(capsys.readouterr().err.split())
