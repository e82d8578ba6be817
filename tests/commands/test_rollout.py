"""`agentgym-tlm rollout` and `eval`: the table, the turn logs, and going on with a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agentgym_tlm.rollout
from agentgym_tlm.cli import main
from agentgym_tlm.envs.args import EnvArgs
from agentgym_tlm.evaluate import read_results
from agentgym_tlm.policies.tiny import build_tiny, tokenizer_texts
from agentgym_tlm.trajectory import Trajectory, read_trajectories


def log(folder: Path, split: str) -> list[Trajectory]:
    return list(read_trajectories(folder / f"{split}.jsonl"))


def test_eval_ends_with_one_table_and_leaves_results_and_turn_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--policy", "expert", "--limit", "4", "--output-dir", str(tmp_path), "--by-task-type"]) == 0
    shown = capsys.readouterr().out
    assert "100.0 [51.0, 100.0]" in shown
    assert "pick_" in shown
    seen, unseen = read_results(tmp_path / "results.json")
    assert (seen.split, unseen.split) == ("valid_seen", "valid_unseen")
    assert all(trajectory.won and trajectory.turns for trajectory in log(tmp_path, "valid_unseen"))
    assert json.loads((tmp_path / "results.json").read_text())[0]["success_rate"] == 1.0


def test_rollout_goes_on_with_what_the_folder_holds(tmp_path: Path) -> None:
    """A stopped collection is finished, not begun again, and ends as if it had not been stopped."""
    common = ["rollout", "--policy", "random", "--limit", "3", "--max-episode-steps", "6"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*common, "--samples-per-task", "2", "--output-dir", str(whole)]) == 0
    assert main([*common, "--samples-per-task", "1", "--output-dir", str(parts)]) == 0
    first = (parts / "train.jsonl").read_text()
    assert main([*common, "--samples-per-task", "2", "--output-dir", str(parts)]) == 0
    assert (parts / "train.jsonl").read_text().startswith(first)

    def by_episode(folder: Path) -> dict[tuple[str, int], Trajectory]:
        return {(trajectory.task_id, trajectory.sample): trajectory for trajectory in log(folder, "train")}

    assert len(log(parts, "train")) == 6
    assert by_episode(parts) == by_episode(whole)


def test_folder_of_other_options_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Episodes of two seeds in one table would look like one evaluation."""
    common = ["eval", "--policy", "random", "--limit", "1", "--max-episode-steps", "3", "--output-dir", str(tmp_path)]
    assert main(common) == 0
    assert main([*common, "--seed", "1"]) == 2
    assert "another seed" in capsys.readouterr().err
    assert main(["eval", "--config", str(tmp_path / "config.yaml")]) == 0


def test_torn_log_is_mended_with_one_line_of_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of our source code, twice, tells a user nothing about the kill that his log has survived."""
    common = ["rollout", "--policy", "expert", "--limit", "2", "--output-dir", str(tmp_path)]
    assert main(common) == 0
    file = tmp_path / "train.jsonl"
    whole = file.read_text()
    file.write_text(whole[:-9])
    capsys.readouterr()
    assert main(common) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "corrupt" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: {file}: cut off a corrupt last line")
    assert file.read_text() == whole


def test_interrupted_play_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> list[Trajectory]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(agentgym_tlm.rollout, "rollout", interrupt)
        assert main(["eval", "--policy", "expert", "--limit", "2", "--output-dir", str(tmp_path)]) == 130
    again = f"agentgym-tlm eval --config {tmp_path}/config.yaml"
    assert capsys.readouterr().err.endswith(f"Interrupted. Go on with: {again}\n")
    assert main(again.split()[1:]) == 0


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("runs/no/such/policy", "there is no folder runs/no/such/policy"),
        ("human", "agentgym-tlm play"),
        ("exprt", "did you mean expert?"),
    ],
)
def test_policy_that_cannot_play_is_named_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, message: str
) -> None:
    assert main(["eval", "--policy", policy, "--output-dir", str(tmp_path / "new")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_split_among_the_environments_options_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--policy", "expert", "--env-kwargs", "split=train"]) == 2
    assert "--splits" in capsys.readouterr().err


def test_policy_folder_plays_with_tokens_and_a_retrained_one_is_not_mixed_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The turn logs of a model are what trainers learn from; episodes of two of its versions must not meet."""
    expert, folder, output = tmp_path / "expert", tmp_path / "policies" / "tiny", tmp_path / "output"
    assert main(["rollout", "--policy", "expert", "--limit", "3", "--output-dir", str(expert)]) == 0
    policy = build_tiny(tokenizer_texts(log(expert, "train")), hidden_size=16, layers=1, heads=2, intermediate=16)
    policy.max_new_tokens = 8
    policy.save(folder)
    arguments = ["rollout", "--policy", str(folder), "--limit", "2", "--output-dir", str(output)]
    assert main([*arguments, "--max-episode-steps", "3"]) == 0
    assert all(trajectory.has_tokens for trajectory in log(output, "train"))
    config = (output / "config.yaml").read_text()
    other = build_tiny(
        tokenizer_texts(log(expert, "train")), hidden_size=16, layers=1, heads=2, intermediate=16, seed=1
    )
    other.save(folder)
    assert main(["rollout", "--config", str(output / "config.yaml")]) == 2
    assert "other weights than it has now: choose another --output-dir" in capsys.readouterr().err
    assert (output / "config.yaml").read_text() == config
    policy.weights_changed("retrained")
    policy.save(folder)
    assert main([*arguments, "--max-episode-steps", "3"]) == 2
    assert "retrained" in capsys.readouterr().err


def test_policy_plays_in_the_environment_that_it_was_trained_on(tmp_path: Path) -> None:
    """A small model that never saw the instructions must not be shown them in an evaluation afterwards."""
    expert, folder = tmp_path / "expert", tmp_path / "policy"
    assert main(["rollout", "--policy", "expert", "--limit", "2", "--output-dir", str(expert)]) == 0
    policy = build_tiny(tokenizer_texts(log(expert, "train")), hidden_size=16, layers=1, heads=2, intermediate=16)
    policy.max_new_tokens = 8
    policy.save(folder)
    EnvArgs(env_kwargs={"action_style": "put"}).remember(folder)
    arguments = ["rollout", "--policy", str(folder), "--limit", "1", "--max-episode-steps", "2", "--output-dir"]
    assert main([*arguments, str(tmp_path / "as trained")]) == 0
    assert "action_style: put" in (tmp_path / "as trained" / "config.yaml").read_text()
    assert main([*arguments, str(tmp_path / "given"), "--env-kwargs", "action_style=move"]) == 0
    assert "action_style: move" in (tmp_path / "given" / "config.yaml").read_text()
    assert EnvArgs(env="HotpotQA-v0").as_remembered(folder) == EnvArgs(env="HotpotQA-v0")


def test_a_policy_that_never_had_room_to_answer_is_told_from_one_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0% of a context that is too short looks like 0% of a policy that plays badly."""
    expert, folder, output = tmp_path / "expert", tmp_path / "policy", tmp_path / "output"
    assert main(["rollout", "--policy", "expert", "--limit", "2", "--output-dir", str(expert)]) == 0
    build_tiny(tokenizer_texts(log(expert, "train")), hidden_size=16, layers=1, heads=2, intermediate=16).save(folder)
    options = ["--limit", "2", "--splits", "valid_seen", "--policy-kwargs", "max_context=12", "max_new_tokens=8"]
    assert main(["eval", "--policy", str(folder), *options, "--output-dir", str(output)]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "2 of 2 episodes of valid_seen ended, as lost, before the first response" in shown
    assert "max_context" in shown
