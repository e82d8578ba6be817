"""Progress: readable on a terminal, quiet in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentgym_tlm.progress import progress_bar, rollout_progress, training_progress
from agentgym_tlm.rollout import RolloutProgress


def test_log_stays_small_without_a_terminal() -> None:
    """Ten thousand updates in a CI log are one line, not ten thousand."""
    log = io.StringIO()
    with progress_bar("train", "updates", 10_000, console=Console(file=log)) as bar:
        for i in range(10_000):
            bar.update(i + 1, "loss 0.1")
    (line,) = log.getvalue().splitlines()
    assert line.startswith("train: 10000/10000 updates, ")
    assert ", loss 0.1, " in line
    assert "\x1b" not in line


def test_lines_come_regularly_without_a_terminal() -> None:
    log = io.StringIO()
    with progress_bar("train", "updates", console=Console(file=log), interval=0.0) as bar:
        bar.update(1)
        bar.update(2)
    assert [line.split(",")[0] for line in log.getvalue().splitlines()] == [f"train: {n} updates" for n in (1, 2)]


def test_interrupted_work_leaves_its_last_state() -> None:
    """After Ctrl-C one wants to know how far it came."""
    log = io.StringIO()

    def work() -> None:
        with progress_bar("train", "updates", 9, console=Console(file=log)) as bar:
            bar.update(4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert "train: 4/9 updates" in log.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_rollout_shows_throughput_and_success(terminal: bool) -> None:
    log = io.StringIO()
    console = Console(file=log, force_terminal=terminal, width=120, legacy_windows=False)
    with rollout_progress("sample", console=console) as report:
        report(RolloutProgress(total=8))
        report(RolloutProgress(total=8, episodes=4, turns=60, tokens=900, wins=1))
    shown = log.getvalue()
    assert "4/8" in shown
    assert "25% won" in shown
    assert "episodes/s" in shown
    assert "tokens/s" in shown


def test_work_that_never_begins_is_not_shown() -> None:
    """A trainer that needs no samples must not report '0 episodes'."""
    for terminal in (True, False):
        log = io.StringIO()
        with rollout_progress("sample", console=Console(file=log, force_terminal=terminal)):
            pass
        assert log.getvalue() == ""


def test_second_round_has_a_bar_of_its_own() -> None:
    """An iterative trainer samples again after learning: the rate of the new round must not count the time between."""
    log = io.StringIO()
    with rollout_progress("samples", console=Console(file=log), interval=1e9) as report:
        for _ in range(2):
            report(RolloutProgress(total=4))
            report(RolloutProgress(total=4, episodes=4, turns=9, tokens=90, wins=1))
    first, second = log.getvalue().splitlines()
    assert first.startswith("samples: 4/4 episodes")
    assert second.startswith("samples: 4/4 episodes")


def test_bars_of_sampling_and_training_nest() -> None:
    """A trainer samples while its own bar is open."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    with training_progress("tlm-dre", console=console) as on_log, rollout_progress("sample", console=console) as report:
        report(RolloutProgress(total=8, episodes=4, turns=60, tokens=900, wins=1))
        on_log({"step": 1, "iteration": 0, "loss": 0.5, "tokens_per_second": 10.0, "total_steps": 3})


def test_training_counts_updates_over_iterations() -> None:
    log = io.StringIO()
    with training_progress("tlm-dre", console=Console(file=log), interval=0.0) as on_log:
        for step, iteration in ((2, 0), (3, 0), (4, 1)):
            line = {"step": step, "iteration": iteration, "loss": 0.5, "tokens_per_second": 1e4, "total_steps": 3}
            on_log(line)
            on_log({"step": step, "iteration": iteration, "eval_success": 0.5})
    heads = [line.split(",")[0] for line in log.getvalue().splitlines()]
    assert heads == [f"tlm-dre: {done} updates" for done in ("2/3", "3/3", "4/6")]
    assert "10,000 tokens/s, loss 0.5" in log.getvalue()
