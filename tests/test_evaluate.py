"""Numbers that a paper would print: if these are wrong, every table is."""

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from agentgym_tlm.evaluate import (
    EvalResult,
    Rate,
    read_results,
    results_table,
    task_type_table,
    wilson_interval,
    write_results,
)
from agentgym_tlm.trajectory import StopReason, Trajectory, Turn


def episode(
    task_type: str = "pick", *, won: bool = False, turns: int = 1, invalid: int = 0, stop: StopReason | None = None
) -> Trajectory:
    stop = stop or (StopReason.WON if won else StopReason.MAX_STEPS)
    return Trajectory(
        env_id="ALFWorld-v0",
        task_id="t",
        task_type=task_type,
        split="valid_seen",
        instruction="",
        seed=0,
        turns=[Turn("o", "r", "a", action_valid=i >= invalid, reward=0.0) for i in range(turns)],
        score=float(won),
        won=won,
        stop_reason=stop,
        policy="p",
    )


def test_wilson_interval_is_the_textbook_one() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    for k, n in [(0, 10), (1, 10), (67, 134), (134, 134)]:
        exact = scipy_stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
        assert wilson_interval(k, n) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_wilson_interval_of_half_of_four_by_hand() -> None:
    # centre = 1/2; half = z/(1+z^2/4) * sqrt(1/16 + z^2/64), z = 1.96
    z = 1.959963984540054
    half = z / (1 + z * z / 4) * math.sqrt(1 / 16 + z * z / 64)
    assert wilson_interval(2, 4) == pytest.approx((0.5 - half, 0.5 + half))


def test_wilson_interval_refuses_impossible_counts() -> None:
    with pytest.raises(ValueError, match="0 <= successes <= n"):
        wilson_interval(5, 4)


def test_a_step_limit_with_progress_is_not_a_success() -> None:
    episodes = [episode(won=True), episode(stop=StopReason.MAX_STEPS)]
    episodes[1].score = 0.99
    assert EvalResult.of(episodes).success == Rate(1, 2)


def test_environment_failures_leave_every_rate_and_are_reported() -> None:
    broken = episode(turns=7, invalid=7, stop=StopReason.ENV_ERROR)
    result = EvalResult.of([episode(won=True, turns=3), broken])
    assert result.success == Rate(1, 1)
    assert result.env_errors == 1
    assert result.mean_turns == 3
    assert result.invalid_action_rate == 0
    assert result.stop_reasons == {"env_error": 1, "won": 1}


def test_turns_and_invalid_actions_are_counted_over_all_turns() -> None:
    result = EvalResult.of([episode(turns=4, invalid=1), episode("heat", won=True, turns=2, invalid=2)])
    assert result.mean_turns == 3
    assert result.invalid_action_rate == pytest.approx(3 / 6)
    assert result.by_task_type == {"heat": Rate(1, 1), "pick": Rate(0, 1)}


def test_rates_of_no_episode_are_null_in_the_file(tmp_path: Path) -> None:
    """Nothing but failures of the environment: there is no mean, and NaN would make the file unreadable elsewhere."""
    write_results(tmp_path / "results.json", [EvalResult.of([episode(stop=StopReason.ENV_ERROR)])])
    text = (tmp_path / "results.json").read_text()
    assert "NaN" not in text
    assert '"mean_turns": null' in text
    (result,) = read_results(tmp_path / "results.json")
    assert math.isnan(result.mean_turns)


def test_splits_are_never_mixed_in_one_number() -> None:
    other = episode()
    other.split = "train"
    with pytest.raises(ValueError, match="one environment, split and policy"):
        EvalResult.of([episode(), other])
    with pytest.raises(ValueError, match="none"):
        EvalResult.of([])


def test_results_survive_the_disk(tmp_path: Path) -> None:
    results = [EvalResult.of([episode(won=True), episode("heat")], label="SFT")]
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results
    record = json.loads((tmp_path / "results.json").read_text())[0]
    assert record["success_rate"] == 0.5
    assert record["success_interval_95"] == pytest.approx(list(wilson_interval(1, 2)))


def test_table_shows_interval_score_and_count() -> None:
    """Success alone says little where an environment gives partial scores."""
    episodes = [episode(won=True), episode()]
    episodes[0].score, episodes[1].score = 1.0, 0.4
    console = Console(width=160, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(results_table([EvalResult.of(episodes, label="SFT")]))
    row = [cell.strip() for cell in capture.get().splitlines()[-2].split("│")]
    assert row[1:6] == ["SFT", "valid_seen", "50.0 [9.5, 90.5]", "70.0", "2"]


def test_narrow_terminal_loses_no_number() -> None:
    """A table that is squeezed into 40 columns shows `po...` and empty cells."""
    episodes = [episode(won=True), episode()]
    console = Console(width=40)
    with console.capture() as capture:
        console.print(results_table([EvalResult.of(episodes, label="SFT")]))
    lines = capture.get().splitlines()
    assert "success % [95% CI]: 50.0 [9.5, 90.5]" in lines
    assert {"policy: SFT", "split: valid_seen", "n: 2"} < set(lines)


def test_success_is_shown_for_every_task_type() -> None:
    results = [EvalResult.of([episode(won=True), episode("heat"), episode("heat")], label="SFT")]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(task_type_table(results))
    rows = {
        cells[1].strip(): cells[2].strip() for line in capture.get().splitlines() if len(cells := line.split("│")) > 2
    }
    assert rows["heat"] == "0.0 [0.0, 65.8]"
