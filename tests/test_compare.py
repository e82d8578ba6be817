"""Trainers x seeds, small but whole: real games, real training, real files; stopped, split, merged, refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym_tlm.benchmark import benchmark_lock, check_lock, keep_lock, read_lock
from agentgym_tlm.cells import Cell
from agentgym_tlm.cli import main
from agentgym_tlm.commands.compare import Compare
from agentgym_tlm.config import load, parse
from agentgym_tlm.errors import ConfigError
from agentgym_tlm.recipes import ExperimentConfig
from agentgym_tlm.variants import Variant, parse_variants

SHAPE = ("--tiny.hidden-size", "16", "--tiny.layers", "1", "--tiny.intermediate-size", "32")
PLAY = (
    "--data-dir",
    "embedded",
    "--env-kwargs",
    "generator=small",
    "--max-episode-steps",
    "4",
    "--evaluation.num-tasks",
    "4",
)
OPTIONS = (*PLAY, *SHAPE, "--expert.num-tasks", "24")


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded default."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def compare(folder: Path, *more: str) -> int:
    return main(["compare", *OPTIONS, "--budget", "80", "--output-dir", str(folder), *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a comparison of two trainers and two seeds, with a further suite."""
    folder = tmp_path_factory.mktemp("compare") / "whole"
    assert compare(folder, "--trainers", "sft", "dpo", "--seeds", "0", "1", "--suites", "put") == 0
    return folder


def test_every_trainer_starts_from_the_seeds_sft_policy_and_plays_the_same_tasks(finished: Path) -> None:
    cells = {name: Cell.read(finished / name) for name in ("seed0/sft", "seed0/dpo", "seed1/sft", "seed1/dpo")}
    assert cells["seed0/sft"].start == cells["seed0/dpo"].start != cells["seed1/sft"].start
    assert list(cells["seed0/dpo"].outcomes) == ["seen", "unseen", "put"]
    for suite in ("seen", "unseen", "put"):
        assert len({tuple(o.task_id for o in cell.outcomes[suite]) for cell in cells.values()}) == 1
    config = load(ExperimentConfig.with_trainer("dpo")(), finished / "seed1" / "dpo" / "config.yaml")
    assert config.sft_policy == finished / "seed1" / "sft" / "sft" / "policy"
    before, after = (
        (finished / "seed0" / cell / "trajectories" / "sft-valid_seen.jsonl").read_text() for cell in ("sft", "dpo")
    )
    assert before == after  # and not played again


def test_budget_is_counted_from_what_was_sampled(finished: Path) -> None:
    """About 80 environment steps, whatever the recipe says; imitation samples none."""
    assert Cell.read(finished / "seed0/sft").env_steps == 0
    cell = Cell.read(finished / "seed0/dpo")
    log = finished / "seed0" / "dpo" / "dpo" / "iteration-0" / "sampled.jsonl"
    assert cell.env_steps == sum(len(json.loads(line)["turns"]) for line in log.read_text().splitlines())
    assert 70 <= cell.env_steps <= 90


def test_finished_cells_are_not_done_again(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.glob("seed*/*/cell.json")}
    assert compare(finished, "--trainers", "sft", "dpo", "--seeds", "0", "1", "--suites", "put") == 0
    assert {path: path.stat().st_mtime_ns for path in finished.glob("seed*/*/cell.json")} == before
    assert "dpo" in capsys.readouterr().out
    assert {"comparison.json", "comparison.md", "comparison.csv"} <= {path.name for path in finished.iterdir()}
    report = (finished / "report.html").read_text()
    assert "Comparison" in report
    assert "minus sft" in report


def test_other_benchmarks_are_refused_and_the_difference_is_named(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(finished, "--trainers", "sft", "--sft.learning-rate", "0.5") == 2
    assert "recipe.sft.learning_rate 0.002, now 0.5" in " ".join(capsys.readouterr().err.split())
    assert compare(finished, "--trainers", "sft", "--budget", "99") == 2


def test_a_cell_that_fails_does_not_stop_the_others(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is kept and said, the exit code tells, and the next call tries again: here from a moved folder."""
    folder = shutil.copytree(finished, tmp_path / "moved")
    shutil.rmtree(folder / "seed1")
    trainers = ["--trainers", "sft", "kto:num_tasks=1", "grpo:tasks_per_iteration=2,samples_per_task=2"]
    assert compare(folder, *trainers, "--seeds", "0") == 1
    captured = capsys.readouterr()
    assert "seed0/kto,num_tasks=1 FAILED: ConfigError" in captured.out
    assert "two tasks" in (folder / "seed0" / "kto,num_tasks=1" / "failure.txt").read_text()
    assert "kto" in (folder / "comparison.md").read_text()
    grpo = Cell.read(folder / "seed0" / "grpo,samples_per_task=2,tasks_per_iteration=2")
    assert 80 <= grpo.env_steps < 80 + 4 * 4  # the budget, and an iteration of 4 episodes of at most 4 steps


def test_other_suites_are_added_to_those_that_were_played(finished: Path, tmp_path: Path) -> None:
    """Hours of play must not leave the table because they are not named again."""
    folder = shutil.copytree(finished, tmp_path / "more")
    before = Cell.read(folder / "seed0/sft")
    assert compare(folder, "--only", "seed0/sft", "--trainers", "sft", "--suites", "paraphrased") == 0
    after = Cell.read(folder / "seed0/sft")
    assert after.outcomes == {**before.outcomes, "paraphrased": after.outcomes["paraphrased"]}
    assert after.unknown.keys() == after.outcomes.keys()


def test_what_is_sampled_alike_is_sampled_once(finished: Path, tmp_path: Path) -> None:
    """Trainers that learn from the same failures get the same file, and come to what they would have come to alone."""
    dpo = finished / "seed0" / "dpo" / "dpo" / "iteration-0" / "sampled.jsonl"
    folders = {name: shutil.copytree(finished, tmp_path / name) for name in ("beside", "alone")}
    for name in ("seed0/dpo", "seed1/dpo"):
        shutil.rmtree(folders["alone"] / name)
    for folder in folders.values():
        assert compare(folder, "--trainers", "dmpo", "--seeds", "0", "--suites", "put") == 0
    cells = [folder / "seed0" / "dmpo" for folder in folders.values()]
    logs = [(cell / "dmpo" / "iteration-0" / "sampled.jsonl").read_bytes() for cell in cells]
    assert logs[0] == dpo.read_bytes() == logs[1]
    assert Cell.read(cells[0]).outcomes == Cell.read(cells[1]).outcomes
    scores = [sorted((cell / "dmpo" / "iteration-0" / "pairs").iterdir()) for cell in cells]
    assert [file.read_bytes() for file in scores[0]] == [file.read_bytes() for file in scores[1]]
    weights = [(cell / "dmpo" / "policy" / "model.safetensors").read_bytes() for cell in cells]
    assert weights[0] == weights[1]


def test_scores_of_pairs_are_shared_only_where_the_pairs_are_the_same(finished: Path, tmp_path: Path) -> None:
    """Scores in another precision are others, and so is what is learnt from them."""
    folder = shutil.copytree(finished, tmp_path / "more")
    specs = ["dpo:mixed_precision=no", "dpo:beta=0.5"]
    assert compare(folder, "--trainers", *specs, "--seeds", "0", "--suites", "put") == 0
    rejected = "iteration-0/pairs/rejected.jsonl"
    whole = (folder / "seed0" / "dpo" / "dpo" / rejected).read_bytes()
    assert (folder / "seed0" / "dpo,beta=0.5" / "dpo" / rejected).read_bytes() == whole
    assert (folder / "seed0" / "dpo,mixed_precision=no" / "dpo" / rejected).read_bytes() != whole


def test_a_cell_that_was_cut_off_goes_on(finished: Path, tmp_path: Path) -> None:
    """In a folder that was moved since, on a smaller machine: with what was sampled, and to the same outcomes."""
    folder = shutil.copytree(finished, tmp_path / "moved")
    cell = folder / "seed0" / "dpo"
    expected = Cell.read(cell)
    for path in (cell / "cell.json", cell / "results.json", cell / "trajectories" / "dpo-valid_seen.jsonl"):
        path.unlink()
    shutil.rmtree(cell / "dpo" / "policy")
    sampled = (cell / "dpo" / "iteration-0" / "sampled.jsonl").stat().st_mtime_ns
    options = ("--trainers", "sft", "dpo", "--seeds", "0", "--suites", "put", "--evaluation.n-slots", "3")
    assert compare(folder, *options) == 0
    assert replace(Cell.read(cell), seconds=expected.seconds) == expected
    assert (cell / "dpo" / "iteration-0" / "sampled.jsonl").stat().st_mtime_ns >= sampled


def _runs(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_seeds_side_by_side_come_to_the_same_results(finished: Path, tmp_path: Path) -> None:
    """Also after a kill, with which every process ends: else the next call would work on the same cells beside it."""
    folder = tmp_path / "jobs"
    arguments = [*OPTIONS, "--budget", "80", "--trainers", "sft", "dpo", "--suites", "put", "--output-dir", str(folder)]
    command = [sys.executable, "-m", "agentgym_tlm", "compare", *arguments, "--jobs", "2"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert program.stderr is not None
    assert "begins" in program.stderr.readline()
    tasks = Path(f"/proc/{program.pid}/task").iterdir()
    workers = [pid for task in tasks for pid in (task / "children").read_text().split()]
    assert len(workers) >= 2
    program.kill()
    program.communicate()
    deadline = time.monotonic() + 30
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "seed1/dpo: begins" in done.stderr
    assert "episodes" not in done.stderr
    assert "episodes" in (folder / "seed1.log").read_text()
    assert json.loads((folder / "comparison.json").read_text()) == json.loads(
        (finished / "comparison.json").read_text()
    )


def test_machines_share_the_work_and_their_folders_are_merged(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, seed in ((here, "seed1"), (there, "seed0")):
        shutil.copytree(finished, folder)
        shutil.rmtree(folder / seed)
    assert compare(here, "--collect", str(there), "--trainers", "sft", "dpo") == 0
    assert json.loads((here / "comparison.json").read_text()) == json.loads((finished / "comparison.json").read_text())
    assert main(["compare", "--env", "HotpotQA-v0", "--output-dir", str(here), "--collect", str(there)]) == 0
    assert "<title>ALFWorld-v0: sft, dpo</title>" in (here / "report.html").read_text()
    assert "Not done yet" not in capsys.readouterr().out  # nobody has said what is wanted
    other = read_lock(there)
    other["packages"]["torch"] = "1.0"
    (there / "benchmark.lock").write_text(json.dumps(other))
    assert compare(here, "--collect", str(there)) == 2


def test_what_another_machine_has_played_further_is_collected(finished: Path, tmp_path: Path) -> None:
    here, there = (shutil.copytree(finished, tmp_path / name) for name in ("here", "there"))
    assert compare(there, "--only", "seed0/sft", "--trainers", "sft", "--suites", "paraphrased") == 0
    assert compare(here, "--only", "seed0/sft", "--trainers", "sft", "--suites", "renamed") == 0
    before = Cell.read(here / "seed0/sft")
    assert compare(here, "--collect", str(there)) == 0
    merged = Cell.read(here / "seed0/sft")
    assert merged.outcomes == before.outcomes | Cell.read(there / "seed0/sft").outcomes
    assert merged.unknown.keys() == merged.outcomes.keys()
    assert (here / "seed0/sft/suites/paraphrased.jsonl").exists()
    changed = [replace(outcome, won=not outcome.won) for outcome in merged.outcomes["paraphrased"]]
    replace(merged, outcomes={**merged.outcomes, "paraphrased": changed}).write(there / "seed0/sft")
    assert compare(here, "--collect", str(there)) == 2


def test_cells_from_different_starts_do_not_compare(finished: Path, tmp_path: Path) -> None:
    """Two machines that both trained the SFT policy of a seed may have different ones."""
    folder = shutil.copytree(finished, tmp_path / "mixed")
    cell = Cell.read(folder / "seed0/dpo")
    replace(cell, start="other").write(folder / "seed0/dpo")
    assert compare(folder, "--only", "seed0/sft", "--trainers", "sft", "dpo", "--suites", "put") == 2


def test_lock_names_what_numbers_depend_on(finished: Path) -> None:
    lock = read_lock(finished)
    assert set(lock) == {
        *("environment", "manifests", "prompt", "sampling", "packages", "budget", "recipe", "suites"),
    }
    assert lock["environment"]["engine"] == "native"
    assert lock["sampling"] == {"temperature": 0.0, "num_tasks": 4, "max_episode_steps": 4}
    assert str(finished) not in json.dumps(lock)
    options = parse(Compare, OPTIONS, prog="compare").comparison().shared
    check_lock(
        lock,
        benchmark_lock(replace(options, num_threads=4, seed=5, sft=replace(options.sft, save_steps=9)), budget=80),
        finished,
    )
    evaluation = replace(options.evaluation, temperature=0.4)
    other = benchmark_lock(replace(options, evaluation=evaluation), budget=80)
    with pytest.raises(ConfigError, match=r"sampling\.temperature 0\.0, now 0\.4"):
        check_lock(lock, other, finished)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--trainers", "dpoo"], "no trainer 'dpoo'"),
        (["--trainers", "dpo:bta=1"], "no option bta; did you mean beta"),
        (["--trainers", "dpo:beta=big"], "beta: expected a number"),
        (["--trainers", "dpo:beta"], "TRAINER:option=value"),
        (["--trainers", "sft:beta=1"], "no options here"),
        (["--trainers", "dpo", "dpo"], "each once"),
        (["--trainers", "ipr"], "ipr:num_tasks=64"),
        (["--seeds", "1", "1"], "each once"),
        (["--suites", "nowhere"], "no suite 'nowhere'"),
        (["--only", "seed7/dpo"], "no cell seed7/dpo"),
        (["--protocol", "gigpo-128"], "plays some tasks twice"),
        (["--protocol", "eto"], "--evaluation.num-tasks"),
        (["--hold-out", "put"], "that has type-pick"),
        (["--baseline", "rft"], "rft is not one of the trainers, which are sft, dpo, tlm-dre"),
    ],
)
def test_mistakes_are_found_before_anything_is_played(
    argv: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):  # of the command line's parser
        assert compare(tmp_path / "folder", *argv) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "folder").exists()


def test_specs_have_one_spelling() -> None:
    (variant,) = parse_variants(("tlm-dre:kernel=lsif,omega-lower=0.5",))
    assert variant == Variant("tlm-dre", {"kernel": "lsif", "omega_lower": 0.5})
    assert (variant.name, variant.folder) == (
        "tlm-dre:kernel=lsif,omega_lower=0.5",
        "tlm-dre,kernel=lsif,omega_lower=0.5",
    )
    config = variant.configured(ExperimentConfig.defaults_for("tiny", "ALFWorld-v0", "tlm-dre"))
    assert config.method.learning_rate == 2e-5  # of the recipe
    assert vars(config.method)["omega_lower"] == 0.5


@pytest.mark.parametrize(
    ("spec", "folder"),
    [
        ("dpo:learning_rate=1e-5", "dpo,learning_rate=1e-5"),
        ("dpo:learning_rate=0.00001", "dpo,learning_rate=1e-5"),
        ("tlm-dre:omega_lower=1.0", "tlm-dre,omega_lower=1"),
        ("dpo:mixed_precision=no", "dpo,mixed_precision=no"),
        ("grpo:drop_degenerate=True", "grpo,drop_degenerate=true"),
        ("nat:positive=a/b", "nat,positive=a%2Fb"),
        ("nat:positive=a_b", "nat,positive=a_b"),
    ],
)
def test_a_cell_has_one_folder_and_a_folder_one_cell(spec: str, folder: str) -> None:
    """Else a value that is written in another way is trained again, or takes the results of another."""
    assert Variant.parse(spec).folder == folder


def test_budget_plans_episodes_and_online_trainers_count() -> None:
    """1000 steps of episodes of 10: 100 episodes; of more episodes than tasks, several each."""

    def planned(spec: str, tasks: int = 1000) -> dict[str, object]:
        variant = Variant.parse(spec)
        config = variant.configured(ExperimentConfig.defaults_for("tiny", "ALFWorld-v0", variant.trainer))
        return vars(variant.within_budget(config, 1000, 10.0, tasks).method)

    assert (planned("dpo")["num_tasks"], planned("dpo")["samples_per_task"]) == (100, 1)
    assert (planned("rft")["num_tasks"], planned("rft")["samples_per_task"]) == (25, 4)
    assert (planned("dpo", tasks=20)["num_tasks"], planned("dpo", tasks=20)["samples_per_task"]) == (20, 5)
    assert planned("tlm-dre:num_iterations=2")["num_tasks"] == 50
    assert planned("dpo:num_tasks=7")["num_tasks"] == 7
    assert planned("tlm-dre:tasks_per_iteration=10,samples_per_task=2")["num_iterations"] == 5
    assert planned("grpo")["max_env_steps"] == 1000


def test_holding_out_trains_on_the_other_types_and_tests_on_the_one() -> None:
    comparison = parse(Compare, ["--hold-out", "type-heat"], prog="compare").comparison()
    assert "pick_heat_then_place_in_recep" not in comparison.shared.envs.env_kwargs["task_types"]
    (suite,) = comparison.suites
    assert suite.envs(comparison.shared.envs).env_kwargs["task_types"] == ["pick_heat_then_place_in_recep"]
    assert suite.out_of_domain(comparison.shared.envs)


def test_protocol_sets_what_it_has() -> None:
    shared = parse(Compare, ["--protocol", "gigpo"], prog="compare").comparison().shared
    assert (shared.envs.max_episode_steps, shared.prompt_format) == (50, "tags")
    assert (shared.evaluation.splits, shared.evaluation.temperature) == (("valid_seen",), 0.4)
    assert shared.expert.num_tasks == 5000  # the recipe is still that of tiny


@pytest.mark.parametrize(
    "option", [("--max-episode-steps", "10"), ("--evaluation.temperature", "0.7"), ("--evaluation.splits", "train")]
)
def test_protocol_is_not_played_in_another_way(option: tuple[str, str]) -> None:
    """Neither silently as the protocol has it, nor as the option has it."""
    with pytest.raises(ConfigError, match="leave out one of the two"):
        parse(Compare, ["--protocol", "gigpo", *option], prog="compare").comparison()


def test_baseline_has_one_spelling(finished: Path) -> None:
    assert compare(finished, "--only", "seed0/sft", "--trainers", "sft", "dpo", "--baseline", " dpo") == 0
    assert json.loads((finished / "comparison.json").read_text())["baseline"] == "dpo"


def test_report_of_a_comparison_begins_with_its_result(finished: Path, tmp_path: Path) -> None:
    """Which is better, by how much, how sure: also when the report is made anew, with figures for a paper."""
    folder = shutil.copytree(finished, tmp_path / "finished")
    (folder / "comparison.json").unlink()
    figures, page = tmp_path / "figures", tmp_path / "report.html"
    assert main(["report", str(folder), "--output", str(page), "--figures", str(figures)]) == 0
    text = page.read_text()
    assert text.index("<h2>Comparison</h2>") < text.index("<h2>Success</h2>")
    assert "unseen: dpo " in text
    rows = (figures / "differences.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows] == [
        ["suite", "trainer"],
        *([suite, "dpo"] for suite in ("seen", "unseen", "put")),
    ]


def test_a_baseline_that_is_yet_to_be_trained_loses_nothing(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first cells of many are done, and the command ends as it does without a baseline."""
    folder = shutil.copytree(finished, tmp_path / "begun")
    for seed in (0, 1):
        shutil.rmtree(folder / f"seed{seed}/dpo")
    assert compare(folder, "--only", "seed0/sft", "--trainers", "sft", "dpo", "--baseline", "dpo") == 0
    assert "No cell of dpo is finished yet: until then, sft is the baseline." in capsys.readouterr().out


def test_options_that_json_cannot_hold_are_the_same_the_next_time(tmp_path: Path) -> None:
    options = parse(Compare, [*OPTIONS, "--sft.max-grad-norm", "inf"], prog="compare").comparison().shared
    for _ in range(2):
        keep_lock(tmp_path, benchmark_lock(options, budget=None))


def test_help_has_no_options_that_mean_nothing_here(capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison has trainers and seeds, and starts every cell itself."""
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    text = capsys.readouterr().out
    assert "--budget" in text
    for option in ("--trainer ", "--seed ", "--resume", "--sft-policy"):
        assert option not in text


def test_options_can_be_those_of_another_comparisons_cells(finished: Path) -> None:
    """The config.yaml of an sft cell holds what all cells share; one of a trainer would be taken for more than that."""
    given = parse(Compare, ["--config", str(finished / "seed1" / "sft" / "config.yaml")], prog="compare")
    assert given.output_dir is None
    assert given.comparison().shared == parse(Compare, OPTIONS, prog="compare").comparison().shared
    with pytest.raises(ConfigError, match="no option dpo"):
        parse(Compare, ["--config", str(finished / "seed1" / "dpo" / "config.yaml")], prog="compare")
