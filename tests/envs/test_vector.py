"""`gym.make_vec`: the same episodes as single environments, slot by slot, and failures that stay in their slot."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

import tests.toy_env  # noqa: F401
from agentgym_tlm.envs.vector import TextVectorEnv
from agentgym_tlm.errors import ConfigError, EnvironmentFailureError, TaskNotFoundError
from tests.envs.fragile import FragileEnv

TASK = "lamp-study-hall"
PLAN = ("go to study", "take lamp", "go to hall", "put lamp")


def make(env_id: str = "Fragile-v0", num_envs: int = 2, **kwargs: Any) -> TextVectorEnv:
    envs = gym.make_vec(env_id, num_envs=num_envs, **kwargs)
    assert isinstance(envs, TextVectorEnv)
    return envs


@pytest.fixture(scope="module")
def two() -> Iterator[TextVectorEnv]:
    """Two slots in a worker each, for tests that leave them usable."""
    envs = make()
    yield envs
    envs.close()


def worker_pids(envs: TextVectorEnv) -> list[str]:
    """Processes in which the slots are played."""
    envs.reset()
    return list(envs.step(["pid"] * envs.num_envs)[0])


def mask(*slots: int, of: int = 2) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.isin(np.arange(of), slots)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("Toy-v0", {}),
        ("Toy-v0", {"workers": 2}),
        ("ALFWorld-v0", {"split": "valid_unseen"}),
        ("ALFWorld-v0", {"split": "valid_unseen", "workers": 1, "admissible_commands": True}),
    ],
)
def test_slots_play_what_single_environments_play(
    env_id: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text, rewards, flags and infos are those of `gym.make`, whatever process they come from."""
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    envs = make(env_id, 3, **kwargs)
    singles = [gym.make(env_id, **{k: v for k, v in kwargs.items() if k != "workers"}) for _ in range(3)]
    listed = DictInfoToList(envs)
    observations, infos = listed.reset(seed=11)
    expected = [env.reset(seed=11 + slot) for slot, env in enumerate(singles)]
    assert list(zip(observations, infos, strict=True)) == expected
    assert observations in envs.observation_space
    for actions in (("look", "inventory", "go to study"), ("go to hall", "\ud800", "go to desk 1")):
        assert actions in envs.action_space
        results = zip(*listed.step(actions), strict=True)
        assert list(results) == [env.step(action) for env, action in zip(singles, actions, strict=True)]
    envs.close()


def test_arrays_and_masks_are_gymnasiums(two: TextVectorEnv) -> None:
    """Wrappers and training loops written for Gymnasium read these types; nothing is reset behind their back."""
    assert two.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert two.metadata["render_modes"] == ["ansi", "human"]
    assert (two.num_envs, two.spec.id if two.spec else None) == (2, "Fragile-v0")
    two.reset(options={"task_id": TASK})
    observations, rewards, terminations, truncations, infos = two.step(np.array(["look", "fly"]))  # type: ignore[arg-type]
    assert type(observations) is tuple
    assert [array.dtype.name for array in (rewards, terminations, truncations)] == ["float64", "bool", "bool"]
    assert infos["task_id"].tolist() == [TASK, TASK]
    assert infos["action_valid"].tolist() == [True, False]
    assert [infos[key].dtype.name for key in ("score", "won", "stop_reason")] == ["float64", "bool", "object"]
    assert infos["_score"].tolist() == [True, True]


def test_gymnasiums_statistics_wrapper_counts_episodes() -> None:
    """A wrapper that exists only for vector environments works on text."""
    envs = RecordEpisodeStatistics(make("Toy-v0"))
    envs.reset(options={"task_id": [TASK, "lamp-cellar-hall"]})
    for action in PLAN:
        *_, infos = envs.step([action, "look"])
    assert infos["episode"]["r"].tolist() == [1, 0]
    assert infos["episode"]["l"].tolist() == [len(PLAN), 0]


def test_step_limit_is_that_of_gym_make() -> None:
    """The limit reaches the environment, so that its end has a stop reason; -1 lifts it."""
    for limit, last in ((3, "max_steps"), (None, None), (-1, None)):
        envs = make("Toy-v0", 1, **({} if limit is None else {"max_episode_steps": limit}))
        envs.reset(seed=0)
        *_, (_, _, _, truncations, infos) = [envs.step(["look"]) for _ in range(3)]
        assert (truncations[0], infos["stop_reason"][0]) == (limit == 3, last)
    assert [envs.step(["look"])[3][0] for _ in range(20)] == [False] * 20


def test_specification_makes_the_same_again() -> None:
    """Checkpoints store the specification of what they ran on."""
    envs = make("Toy-v0", 3, split="valid_seen")
    assert envs.spec is not None
    again = gym.make_vec(gym.envs.registration.EnvSpec.from_json(envs.spec.to_json()))
    assert again.num_envs == 3
    assert again.reset(seed=5)[1]["split"].tolist() == ["valid_seen"] * 3
    with pytest.raises(ConfigError, match="leave vectorization_mode out"):
        gym.make_vec("Toy-v0", num_envs=2, vectorization_mode="sync")


@pytest.mark.parametrize("workers", [0, 2])
def test_slots_are_reset_on_their_own(workers: int) -> None:
    """A slot whose episode ended takes the next task while the others go on; what waits stays as it is."""
    envs = make("Toy-v0", 3, workers=workers)
    before, _ = envs.reset(seed=1, options={"task_id": [TASK, None, "lamp-cellar-study"]})
    for action in PLAN:
        observations, rewards, terminations, truncations, infos = envs.step([action, None, None])
    assert observations[1:] == before[1:]
    assert (rewards.tolist(), terminations.tolist()) == ([1, 0, 0], [True, False, False])
    assert not truncations.any()
    assert infos["_won"].tolist() == [True, False, False]
    with pytest.raises(gym.error.ResetNeeded, match=r"slots \[0\].*reset_mask"):
        envs.step(["look"] * 3)
    options = {"reset_mask": mask(0, of=3), "task_id": ["lamp-hall-study", None, None]}
    observations, infos = envs.reset(options=options)
    assert options.keys() == {"reset_mask", "task_id"}
    assert observations[1:] == before[1:]
    assert (infos["task_id"][0], infos["_task_id"].tolist()) == ("lamp-hall-study", [True, False, False])
    assert envs.step(["look"] * 3)[0][2] == "You see nothing."
    envs.close()


def test_seeds_choose_the_tasks_in_any_process() -> None:
    """One seed names a whole run: later resets follow from it, with workers, without, and after a crash."""
    plain, parallel = make(num_envs=2, workers=0), make(num_envs=2)
    runs = []
    for envs in (plain, parallel):
        tasks = [envs.reset(seed=[3, 40])[1]["task_id"].tolist()]
        for _ in range(6):
            tasks.append(envs.reset()[1]["task_id"].tolist())
            if envs is parallel:
                envs.step(["exit", "look"])
        runs.append(tasks)
    assert runs[0] == runs[1]
    assert len({task for pair in runs[0] for task in pair}) > 3
    for seed in ([None, 40], [np.int32(7), np.int64(40)], np.array([39, 40]), np.int64(39)):
        assert plain.reset(seed=seed)[1]["task_id"][1] == runs[0][0][1]  # type: ignore[arg-type]
    parallel.close()


@pytest.mark.parametrize(
    ("seed", "options", "error", "message"),
    [
        ([1], None, ConfigError, "seed has 1 values for 2 slots"),
        (["a", "b"], None, ConfigError, "seed must be ints"),
        (None, {"task_id": [TASK]}, ConfigError, "task_id.* has 1 values"),
        (None, {"task_id": 7}, ConfigError, "task_id.* must be strs"),
        (None, {"reset_mask": [True]}, ConfigError, "2 booleans"),
        (None, {"reset_mask": [0, 1]}, ConfigError, "2 booleans"),
        (None, {"reset_mask": [False, False]}, ConfigError, "at least one"),
        (None, "x", ConfigError, "options must be a dictionary"),
        (None, {"task_id": "no-such"}, TaskNotFoundError, "no-such"),
    ],
)
def test_resets_that_make_no_sense_are_refused(
    two: TextVectorEnv, seed: Any, options: Any, error: type[Exception], message: str
) -> None:
    """A list of the wrong length must not play other tasks than were meant; a worker's error is the caller's, too."""
    with pytest.raises(error, match=message):
        two.reset(seed=seed, options=options)
    two.reset(seed=0)


@pytest.mark.parametrize("actions", ["go", ["look"], ["look", 3], 7, {"look", "go"}, ["look"] * 3])
def test_actions_that_make_no_sense_are_refused(two: TextVectorEnv, actions: Any) -> None:
    """A single string is not an action per letter; nothing is played before the whole call is known to be right."""
    two.reset(options={"task_id": TASK})
    with pytest.raises(gym.error.InvalidAction):
        two.step(actions)
    assert two.step(["go to study", "look"])[0][0].startswith("You arrive")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 0}, "num_envs must be in"),
        ({"workers": 3}, "workers=3 must be between 0"),
        ({"workers": -1}, "workers must be in"),
        ({"workers": 0, "step_timeout": 1.0}, "for worker processes"),
        ({"step_timeout": 0.0}, "step_timeout must be in"),
        ({"step_timeout": float("nan")}, "step_timeout must be in"),
        ({"step_timeout": "3"}, "step_timeout must be a number"),
        ({"workers": 1.5}, "workers must be a whole number"),
        ({"workers": 1, "recycle_after": 5}, "one worker per slot"),
        ({"recycle_after": 0}, "recycle_after must be in"),
        ({"fail_on": lambda: None}, "cannot be sent to worker processes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kwargs: dict[str, Any], message: str) -> None:
    """Before a process is started, and in words."""
    with pytest.raises(ConfigError, match=message):
        make(**kwargs)


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_constructor_arrive(workers: int) -> None:
    """A misspelt split is one error, the environment's own, and leaves no process behind."""
    before = multiprocessing.active_children()
    with pytest.raises(ConfigError, match="split must be one of"):
        make("ALFWorld-v0", split="test", workers=workers)
    assert multiprocessing.active_children() == before


def test_failure_ends_the_episode_of_its_slot_only() -> None:
    """An engine that reports its failure: env_error, no reward, and the next reset works."""
    for workers in (0, 1):
        envs = make(workers=workers)
        envs.reset(options={"task_id": TASK})
        _, rewards, terminations, truncations, infos = envs.step(["fail", "go to study"])
        assert (rewards.tolist(), terminations.tolist(), truncations.tolist()) == ([0, 0], [False] * 2, [True, False])
        assert infos["stop_reason"].tolist() == ["env_error", None]
        assert infos["error"].tolist() == ["the lamp exploded", None]
        assert infos["_error"].tolist() == [True, False]
        assert (infos["task_id"][0], infos["won"][0], infos["action_valid"][0]) == (TASK, False, False)
        with pytest.raises(gym.error.ResetNeeded):
            envs.step(["look", None])
        envs.reset(options={"reset_mask": mask(0)})
        assert envs.step(["look", "take lamp"])[0][1] == "You take the lamp."
        envs.close()


@pytest.mark.parametrize(
    ("action", "message"), [("exit", "exit code 3"), ("kill", "exit code -9"), ("hang", "did not answer to 'step'")]
)
def test_dead_and_hung_workers_are_replaced(action: str, message: str) -> None:
    """A crash, a kill by the system, an endless loop: the slot's episode is lost, the other one goes on."""
    envs = make(step_timeout=2.0 if action == "hang" else 60.0)
    first = worker_pids(envs)
    envs.reset(options={"task_id": TASK})
    observations, _, _, truncations, infos = envs.step([action, "go to study"])
    assert (truncations.tolist(), infos["stop_reason"].tolist()) == ([True, False], ["env_error", None])
    assert message in infos["error"][0]
    assert first[0] in infos["error"][0]
    assert observations[1].startswith("You arrive at the study")
    envs.reset(options={"reset_mask": mask(0)})
    assert envs.step(["look", "take lamp"])[0][1] == "You take the lamp."
    second = worker_pids(envs)
    assert second[0] != first[0]
    assert second[1] == first[1]
    envs.close()


def test_slots_of_one_worker_are_lost_together() -> None:
    """Also a slot that was waiting when the worker died, and one whose worker died between two calls."""
    envs = make(num_envs=3, workers=1)
    envs.reset()
    *_, infos = envs.step(["kill", "look", None])
    assert infos["stop_reason"].tolist() == ["env_error", "env_error", None]
    envs.reset(options={"reset_mask": mask(0, of=3)})
    *_, truncations, infos = envs.step(["look", None, "look"])
    assert truncations.tolist() == [False, False, True]
    assert infos["stop_reason"].tolist() == [None, None, "env_error"]
    worker = int(worker_pids(envs)[0])
    os.kill(worker, signal.SIGKILL)
    for child in multiprocessing.active_children():
        if child.pid == worker:
            child.join()
    assert envs.step(["look"] * 3)[4]["stop_reason"].tolist() == ["env_error"] * 3
    assert envs.reset()[1]["stop_reason"].tolist() == [None] * 3
    envs.close()


def test_reset_that_fails_is_told_and_can_be_repeated(tmp_path: Path) -> None:
    """An engine that does not come up again is reported, not waited for nor raised over the other slots."""
    envs = make()
    envs.reset()
    envs.set_attr("fail_reset", ["no more memory", None])
    observations, infos = envs.reset()
    assert observations[0] == ""
    assert infos["stop_reason"].tolist() == ["env_error", None]
    assert infos["error"][0] == "no more memory"
    with pytest.raises(gym.error.ResetNeeded, match=r"slots \[0\]"):
        envs.step(["look", "look"])
    envs.set_attr("fail_reset", None)
    assert envs.reset()[1]["stop_reason"].tolist() == [None, None]
    envs.close()


def test_attributes_outlive_what_is_replaced() -> None:
    """A limit that was set holds for the whole run, not until some worker dies, fails or is renewed."""
    for workers, action in ((2, "kill"), (2, "fail"), (0, "fail"), (2, "look")):
        envs = make(workers=workers, recycle_after=1 if workers else None)
        envs.set_attr("max_episode_steps", [3, 5])
        for _ in range(2):
            envs.reset()
            envs.step([action, "look"])
        envs.reset()
        assert envs.get_attr("max_episode_steps") == (3, 5)
        envs.close()


def test_killed_worker_leaves_neither_processes_nor_files() -> None:
    """An engine that hangs does not notice that it is alone, and fills a node's memory and disk run by run."""
    envs = make(num_envs=1, workers=1, step_timeout=2.0)
    envs.reset()
    child, folder = envs.step(["start"])[0][0].split(" ", 1)
    assert Path(folder).is_dir()
    assert Path(f"/proc/{child}").exists() or not Path("/proc").exists()
    envs.step(["hang"])
    assert not Path(folder).exists()
    if Path("/proc").exists():
        deadline = time.monotonic() + 5
        while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    envs.close()


def test_defects_are_raised_with_the_workers_traceback(two: TextVectorEnv) -> None:
    """A bug in an environment shows itself and where it is, even if its exception cannot be sent."""
    two.reset()
    with pytest.raises(RuntimeError, match="_OddError: two is not 1") as raised:
        two.step(["defect", "look"])
    assert "fragile.py" in str(raised.value.__cause__)
    with pytest.raises(gym.error.ResetNeeded):
        two.step(["look", "look"])
    two.reset()
    with pytest.raises((AttributeError, pickle.PicklingError), match="secret"):
        two.call("secret")
    two.step(["look", "look"])


def test_attributes_and_methods_of_the_environments(two: TextVectorEnv) -> None:
    """Search and evaluation reach through: snapshots are taken and played on elsewhere, limits are changed."""
    two.reset(options={"task_id": TASK})
    two.step(["go to study", "look"])
    snapshots = two.call("snapshot")
    assert [state.room for state, _ in snapshots] == ["study", "hall"]
    assert {manifest.sha256 for manifest in two.get_attr("manifest")} == {two.get_attr("manifest")[0].sha256}
    assert two.call("version")[0]["engine"] == "toy"
    two.set_attr("max_episode_steps", [2, 4])
    assert two.get_attr("max_episode_steps") == (2, 4)
    two.set_attr("max_episode_steps", 15)
    assert two.get_attr("max_episode_steps") == (15, 15)
    with pytest.raises(ConfigError, match="1 values for 2 slots"):
        two.set_attr("max_episode_steps", [2])
    envs = make("ALFWorld-v0", num_games=3, render_mode="ansi")
    observations, _ = envs.reset()
    assert envs.render() == observations


def test_worker_that_dies_in_a_call_is_an_error_and_its_episode_is_lost() -> None:
    """Half an answer would be taken for a whole one; what was being played is known to be lost."""
    envs = make()
    envs.reset()
    with pytest.raises(EnvironmentFailureError, match=r"exit code -9 at 'call'"):
        envs.call("step", "kill")
    assert envs.step(["look", "look"])[4]["stop_reason"].tolist() == ["env_error"] * 2
    assert envs.get_attr("render_mode") == (None, None)
    assert envs.reset()[1]["stop_reason"].tolist() == [None] * 2
    envs.close()


def test_worker_is_renewed_after_its_episodes() -> None:
    """Engines that leak memory get a fresh process, without losing an episode."""
    envs = make(recycle_after=2)
    pids = []
    for _ in range(5):
        pids.append(worker_pids(envs)[0])
        envs.reset(options={"reset_mask": mask(1)})
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]
    envs.close()


SCRIPT = """
import os, signal, sys, threading
import gymnasium as gym
import tests.envs.fragile

{start}
    envs = gym.make_vec("Fragile-v0", num_envs=2)
    envs.reset(seed=0)
    {body}
"""


def run_script(folder: Path, body: str, start: str = "if __name__ == '__main__':") -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT.format(start=start, body=body.replace("\n", "\n    ")), encoding="utf-8")
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
        start_new_session=True,
    )


def test_ctrl_c_reaches_the_caller_and_nothing_else(tmp_path: Path) -> None:
    """The whole foreground group gets the signal: no worker prints a traceback, and a reset is enough to go on."""
    body = """threading.Timer(1.0, os.killpg, (0, signal.SIGINT)).start()
try:
    envs.step(["hang", None])
except KeyboardInterrupt:
    print("interrupted")
try:
    envs.step(["look", None])
except gym.error.ResetNeeded:
    print("reset needed")
print(envs.step([None, "look"])[2:4], envs.reset(seed=0)[1]["stop_reason"], envs.step(["look", "look"])[3])"""
    result = run_script(tmp_path, body)
    assert result.stderr == ""
    assert result.stdout == (
        "interrupted\nreset needed\n(array([False, False]), array([False, False])) [None None] [False False]\n"
    )


def test_interrupt_in_this_process_needs_a_reset() -> None:
    """Without workers, too, nobody knows how far the interrupted step had come."""
    envs = make(workers=0)
    envs.reset()
    with pytest.raises(KeyboardInterrupt):
        envs.step(["interrupt", None])
    with pytest.raises(gym.error.ResetNeeded, match=r"slots \[0\]"):
        envs.step(["look", "look"])
    envs.step([None, "look"])
    assert envs.step([None, None])[4] == {}


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit('bye')"])
def test_workers_end_with_their_process(ending: str, tmp_path: Path) -> None:
    """However the script ends, nothing of it stays in the process table (or on a cluster's node)."""
    result = run_script(tmp_path, f"print(*envs.step(['pid', 'pid'])[0], flush=True)\n{ending}")
    assert "Traceback" not in result.stderr
    for pid in map(int, result.stdout.split()):
        wait_for_the_end(pid)


def wait_for_the_end(pid: int) -> None:
    """Returns when there is no such process any more; the caller's time limit is the test's."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        threading.Event().wait(0.05)
    pytest.fail(f"process {pid} is still there")


def test_script_without_guard_is_told_about_it(tmp_path: Path) -> None:
    """Python starts workers by importing the script; the usual mistake is named."""
    result = run_script(tmp_path, "", start="if True:")
    assert "if __name__ == '__main__'" in result.stderr.strip().splitlines()[-1]


def test_forked_process_must_not_use_or_end_the_workers(two: TextVectorEnv) -> None:
    """A data loader that forks gets a clear error, and its exit does not close its parent's environments."""
    two.reset()
    child = os.fork()
    if child == 0:
        try:
            two.step(["look", "look"])
        except ConfigError as error:
            two.close()
            os._exit(0 if "make others after forking" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    two.step(["look", "look"])


def test_daemonic_process_is_told_that_it_cannot_start_workers() -> None:
    """Python forbids it; the message says what works instead."""
    process = multiprocessing.get_context("spawn").Process(target=make_in_daemon, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 7


def make_in_daemon() -> None:
    try:
        make()
    except ConfigError as error:
        sys.exit(7 if "workers=0" in str(error) else 8)


@pytest.mark.parametrize("workers", [0, 1])
def test_closing_twice_is_fine_and_using_after_is_not(workers: int) -> None:
    """`finally: envs.close()` is always right."""
    envs = make(workers=workers)
    envs.close()
    envs.close()
    for name, *args in (("reset",), ("step", ["look"] * 2), ("call", "manifest")):
        with pytest.raises(gym.error.ClosedEnvironmentError):
            getattr(envs, name)(*args)


def test_environments_that_nobody_uses_any_more_are_closed() -> None:
    """An engine's processes and files are given back although nobody called close."""
    before = FragileEnv.times_closed
    envs = make(workers=0)
    del envs
    gc.collect()
    assert FragileEnv.times_closed == before + 2


@pytest.mark.parametrize(("workers", "cycles"), [(0, 200), (2, 30)])
def test_nothing_is_left_after_many_environments(workers: int, cycles: int) -> None:
    """A sweep that makes environments for every run must not run out of processes, threads or files."""

    def cycle(index: int) -> None:
        envs = make(workers=workers)
        envs.reset(seed=index)
        envs.step(["look", "kill" if workers and index % 2 else "look"])
        if index % 3:
            envs.close()

    def left() -> tuple[int, int, int]:
        gc.collect()
        return len(multiprocessing.active_children()), threading.active_count(), len(os.listdir("/dev/fd"))

    cycle(0)
    before = left()
    for index in range(cycles):
        cycle(index)
    assert left() == before
