"""Playing by hand, through a pipe: what is typed is carried out, taken back, listed, logged."""

from __future__ import annotations

import io
from pathlib import Path

import gymnasium as gym
import pytest

from agentgym_tlm.cli import main
from agentgym_tlm.commands.play import Play
from agentgym_tlm.envs.args import EnvArgs, text_env
from agentgym_tlm.trajectory import StopReason, Trajectory, read_trajectories


def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: list[str], *argv: str) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in typed)))
    assert main(["play", *argv]) == 0
    return capsys.readouterr().out


def solution(task_id: str) -> list[str]:
    """What the scripted expert does on a task of the default split."""
    with gym.make("ALFWorld-v0", split=Play.split) as env:
        expert = text_env(env).expert()
        observation, info = env.reset(options={"task_id": task_id})
        actions = []
        while info["stop_reason"] is None:
            actions.append(expert.act(observation)[1])
            observation, *_, info = env.step(actions[-1])
        assert info["won"]
    return actions


@pytest.fixture(scope="module")
def task_id() -> str:
    first: str = EnvArgs().manifest(Play.split)[0]
    return first


def logged(path: Path) -> Trajectory:
    (trajectory,) = read_trajectories(path)
    return trajectory


def test_winning_is_said_and_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, task_id: str
) -> None:
    actions = solution(task_id)
    log = tmp_path / "play.jsonl"
    shown = play(monkeypatch, capsys, actions, "--task-id", task_id, "--log", str(log))
    assert f"Won in {len(actions)} steps." in shown
    assert str(log) in shown
    trajectory = logged(log)
    assert trajectory.won
    assert [turn.action for turn in trajectory.turns] == actions
    assert trajectory.task_id == task_id
    assert trajectory.policy == "human"


def test_undo_goes_back_and_the_log_holds_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, task_id: str
) -> None:
    """A wrong turn taken back must cost no step, and the record must not contain it."""
    actions = solution(task_id)
    log = tmp_path / "play.jsonl"
    typed = [actions[0], "look", "inventory", ":undo", ":u", *actions[1:]]
    shown = play(monkeypatch, capsys, typed, "--task-id", task_id, "--log", str(log))
    assert f"Won in {len(actions)} steps." in shown
    trajectory = logged(log)
    assert [turn.action for turn in trajectory.turns] == actions
    assert trajectory.metadata == {"undone_turns": 2}


def test_undo_before_the_first_action_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task_id: str
) -> None:
    assert "Nothing to take back." in play(monkeypatch, capsys, [":undo"], "--task-id", task_id)


@pytest.mark.parametrize("question", ["?", "help!"])
def test_question_mark_lists_the_possible_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task_id: str, question: str
) -> None:
    shown = play(monkeypatch, capsys, [question], "--task-id", task_id)
    assert "\ninventory\n" in shown
    assert "\nlook\n" in shown
    assert "0 steps" in shown


@pytest.mark.parametrize("ending", [[], [":q", "look"]])
def test_end_of_input_and_quit_end_the_episode(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    task_id: str,
    ending: list[str],
) -> None:
    log = tmp_path / "play.jsonl"
    shown = play(monkeypatch, capsys, ["look", "", *ending], "--task-id", task_id, "--log", str(log))
    assert "Not won (ended early), 1 step." in shown
    assert logged(log).stop_reason is StopReason.ABORTED


def test_unknown_colon_command_is_not_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task_id: str
) -> None:
    shown = play(monkeypatch, capsys, [":help"], "--task-id", task_id)
    assert "There is no :help." in shown
    assert "0 steps" in shown


def test_seed_chooses_the_task(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (play(monkeypatch, capsys, [], "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert first != other


def test_step_limit_ends_the_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task_id: str
) -> None:
    shown = play(monkeypatch, capsys, ["look"] * 5, "--task-id", task_id, "--max-episode-steps", "3")
    assert "Not won (no steps left), 3 steps." in shown


def test_unknown_task_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--task-id", "no-such-task"]) == 2
    assert "no-such-task" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--env", "ScienceWorld-v0", "--data-dir", "embedded"), "ScienceWorld-v0 has no data folder: leave out"),
        (("--env-kwargs", "num_gmes=3"), "--env-kwargs num_gmes=3: "),
    ],
)
def test_messages_name_what_was_typed(argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What `play` adds by itself is nobody's mistake."""
    assert main(["play", *argv]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "admissible_commands" not in shown
