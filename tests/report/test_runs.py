"""What a report reads from run folders: names, variants, turn logs, and the weights that turns had."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_tlm.cells import Cell
from agentgym_tlm.errors import DataError
from agentgym_tlm.report.runs import Run, read_runs, variants
from agentgym_tlm.trajectory import write_trajectories
from tests.report.folders import episode, pair, run_folder


def test_what_is_no_run_folder_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it has no config"):
        read_runs([tmp_path])
    with pytest.raises(DataError, match="at least one"):
        read_runs([])
    for foreign in ("- a list", "model: gpt", "a: [", ""):
        (tmp_path / "config.yaml").write_text(foreign)
        with pytest.raises(DataError, match=r"names no policy|cannot be read"):
            _ = read_runs([tmp_path])[0].config


def test_names_are_as_short_as_they_can_be_told_apart(tmp_path: Path) -> None:
    """Cells of a comparison are all called seed-0; a path of six folders before each would fill the page."""
    folders = [run_folder(tmp_path / name) for name in ("dpo/seed-0", "dil/seed-0", "single")]
    assert [run.name for run in read_runs([*folders, folders[0]])] == ["dpo/seed-0", "dil/seed-0", "single"]


def test_runs_are_told_apart_by_the_options_that_differ(tmp_path: Path) -> None:
    """A search over omega_lower is four lines with four names, and its seeds are one."""
    runs = read_runs(
        [
            run_folder(tmp_path / "a", omega_lower=0.2, save_steps=10),
            run_folder(tmp_path / "b", omega_lower=0.6, save_steps=20),
            run_folder(tmp_path / "c", omega_lower=0.6, seed=1),
            run_folder(tmp_path / "d", "dpo"),
        ]
    )
    assert list(variants(runs).values()) == [
        "tlm-dre (omega_lower 0.2)",
        "tlm-dre (omega_lower 0.6)",
        "tlm-dre (omega_lower 0.6)",
        "dpo",
    ]


def test_seeds_of_a_comparison_are_one_method_however_many_tasks_their_budget_gave_them(tmp_path: Path) -> None:
    """Else every seed has a line, a colour and a row of its own; tasks that were asked for are a difference."""
    specs = {"a": ("dpo", 1919), "b": ("dpo", 1843), "c": ("dpo:num_tasks=64", 64)}
    for name, (spec, num_tasks) in specs.items():
        Cell(spec, 0, "", 0, 0.0, {}).write(run_folder(tmp_path / name, "dpo", num_tasks=num_tasks))
    runs = read_runs([tmp_path / name for name in specs])
    assert list(variants(runs[:2]).values()) == ["dpo", "dpo"]
    assert variants(runs)[runs[2].folder] == "dpo (num_tasks 64)"


def test_logs_are_those_of_evaluations_pairs_training_and_expert(tmp_path: Path) -> None:
    run = Run(run_folder(tmp_path / "run", pairs=[pair(), pair()]), "run")
    assert [(log.kind, log.label, log.name, log.size) for log in run.logs()] == [
        ("evaluation", "sft", "sft-valid_seen", 4),
        ("evaluation", "tlm-dre", "tlm-dre-valid_seen", 4),
        ("pair", "tlm-dre", "pairs, iteration 0", 2),
        ("expert", "expert", "expert", 1),
    ]
    write_trajectories(run.folder / "suites" / "put.jsonl", [episode(["put lamp"])])
    assert ("evaluation", "tlm-dre", "tlm-dre-put", 1) in [
        (log.kind, log.label, log.name, log.size) for log in run.logs()
    ]
    online = Run(run_folder(tmp_path / "online", "grpo"), "online")
    for i in (10, 9):
        write_trajectories(online.folder / "grpo" / f"iteration-{i}" / "episodes.jsonl", [episode(["put lamp"])])
    assert [log.name for log in online.logs() if log.kind == "training"] == ["iteration 9", "iteration 10"]


def test_a_limit_takes_evenly_spaced_episodes(tmp_path: Path) -> None:
    """The first hundred of an ALFWorld log are all of one task type."""
    write_trajectories(
        tmp_path / "trajectories" / "log.jsonl", [episode(["put lamp"], task=str(i), tokens=False) for i in range(10)]
    )
    (tmp_path / "config.yaml").write_text("policy: expert\n")
    (log,) = Run(tmp_path, "run").logs()
    assert [t.task_id for (t,) in log.read(3)] == ["0", "3", "6"]
    assert len(list(log.read(None))) == 10


def test_turn_weights_are_those_of_the_training(tmp_path: Path) -> None:
    """By the pivot that the training logged, which a quantile may have set; the boundary itself weighs omega_upper."""
    pairs = [pair()]
    given = Run(run_folder(tmp_path / "given", pairs=pairs, p_pivot=0.92, omega_lower=0.4), "given")
    (chosen, rejected), pivot = (pairs[0].chosen, pairs[0].rejected), given.pivot(0)
    assert pivot == 0.92
    assert [given.weight(turn, "rejected", pivot) for turn in rejected.turns] == [0.4, 1.0, 1.0]
    assert [given.weight(turn, "chosen", pivot) for turn in chosen.turns] == [0.4, 0.4]
    logged = Run(run_folder(tmp_path / "logged", metrics=[{"step": 0, "iteration": 0, "p_pivot": 0.3}]), "logged")
    assert logged.pivot(0) == 0.3
    one_side = Run(run_folder(tmp_path / "one", weight_side="rejected"), "one")
    assert [one_side.weight(turn, "chosen", 0.9) for turn in chosen.turns] == [1.0, 1.0]
    other = Run(run_folder(tmp_path / "dpo", "dpo"), "dpo")
    assert other.weight(chosen.turns[0], "chosen", other.pivot(0)) is None


@pytest.mark.parametrize(
    ("policy", "name"), [("expert", "expert"), ("runs/a/tlm-dre/policy", "tlm-dre"), ("org/model-0.5B", "model-0.5B")]
)
def test_an_evaluation_is_called_by_its_policy(tmp_path: Path, policy: str, name: str) -> None:
    """A folder that `agentgym-tlm eval` wrote names no trainer."""
    (tmp_path / "config.yaml").write_text(f"policy: {policy}\nenv: Toy-v0\n")
    write_trajectories(tmp_path / "valid_seen.jsonl", [episode(["put lamp"])])
    (log,) = Run(tmp_path, "run").logs()
    assert (log.label, log.kind, log.run.pivot(0), log.tokenizer) == (name, "evaluation", None, None)
    assert log.name == f"{name}-valid_seen"  # as in a run of train, so that the two are read side by side


def test_an_evaluation_does_not_differ_in_every_option(tmp_path: Path) -> None:
    """Beside the run that trained its policy, the names of both stay short, and are two."""
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "config.yaml").write_text("policy: runs/a/dpo/policy\nenv: Toy-v0\n")
    runs = read_runs([tmp_path / "eval", run_folder(tmp_path / "dpo", "dpo")])
    assert [variants(runs)[run.folder] for run in runs] == ["dpo (eval)", "dpo"]


def test_folders_of_runs_stand_for_their_runs(tmp_path: Path) -> None:
    """A comparison, or an evaluation on suites; and each suite's tasks are its own."""
    for suite in ("unseen", "renamed"):
        (tmp_path / "eval" / suite).mkdir(parents=True)
        (tmp_path / "eval" / suite / "config.yaml").write_text("policy: runs/a/dpo/policy\nenv: ALFWorld-v0\n")
        write_trajectories(tmp_path / "eval" / suite / "valid_unseen.jsonl", [episode(["put lamp"])])
    run_folder(tmp_path / "cmp" / "seed0" / "dpo", "dpo")
    runs = read_runs([tmp_path / "eval", tmp_path / "cmp"])
    assert [run.name for run in runs] == ["renamed", "unseen", "dpo"]
    assert [log.name for run in runs[:2] for log in run.logs()] == ["dpo-renamed", "dpo-valid_unseen"]


def test_an_sft_policy_is_found_where_its_comparison_was_moved_to(tmp_path: Path) -> None:
    """Else each cell would count it as another one."""
    sft = run_folder(tmp_path / "seed0" / "sft", "dpo")
    cell = run_folder(tmp_path / "seed0" / "dpo", "dpo", sft_policy=Path("runs/elsewhere/seed0/sft/sft/policy"))
    assert Run(cell, "dpo").sft_policy == sft / "sft" / "policy"


def test_of_many_evaluations_the_same_tasks_are_shown(tmp_path: Path) -> None:
    """Logs are in the order in which episodes end, and hold those that were played again twice."""
    (tmp_path / "config.yaml").write_text("policy: dpo\n")
    shown = []
    for split, order in (("a", [3, 1, 0, 2, 5, 4]), ("b", [2, 0, 1, 2, 4, 5, 3])):
        write_trajectories(tmp_path / f"{split}.jsonl", [episode(["put lamp"], task=f"task{i}") for i in order])
    for log in Run(tmp_path, "run").logs():
        shown.append(sorted(found.task_id for (found,) in log.read(3)))
    assert shown == [["task0", "task2", "task4"]] * 2
