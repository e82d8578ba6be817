"""Java that dies, hangs or runs out of memory, Python that is killed, forked or interrupted: nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import agentgym_tlm  # noqa: F401  (registers the environments)
from agentgym_tlm.envs.scienceworld.env import ScienceWorldEnv
from agentgym_tlm.errors import EnvironmentFailureError
from agentgym_tlm.policies.expert import ExpertPolicy
from agentgym_tlm.rollout import rollout
from agentgym_tlm.trajectory import StopReason

pytestmark = pytest.mark.usefixtures("java")

TASK = {"task_id": "lifespan-longest-lived/0"}


def started(**options: Any) -> ScienceWorldEnv:
    env = gym.make("ScienceWorld-v0", **options).unwrapped
    assert isinstance(env, ScienceWorldEnv)
    env.reset(options=TASK)
    return env


def exists(pid: int) -> bool:
    """Whether a process runs; one that has ended and is only waited for by somebody else does not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    return "State:\tZ" not in status


def children() -> set[int]:
    """Children of this process, zombies included."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text(encoding="utf-8").split()}


def eventually(holds: Callable[[], bool]) -> bool:
    for _ in range(300):
        if holds():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("backend", ["shared", "isolated"])
def test_killed_java_ends_the_episode_and_is_replaced(backend: str) -> None:
    """No reward is made up; the next episode is played as if nothing had happened."""
    env = started(backend=backend, timeout=60)
    text, *_ = env.step("look around")
    pid = env._simulator.pid
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EnvironmentFailureError, match="killed by signal 9"):
            env.step("look around")
    assert not exists(pid)
    env.reset(options=TASK)
    assert env._simulator.pid != pid
    assert env.step("look around")[0] == text
    env.close()
    env._simulator.close()


def test_java_killed_between_episodes_is_not_noticed() -> None:
    """`reset` finds out before it asks."""
    env = started(timeout=61)
    os.kill(env._simulator.pid, signal.SIGKILL)
    assert eventually(lambda: not env._simulator.usable)
    env.reset(options=TASK)
    assert env.step("look around")[4]["action_valid"]
    env._simulator.close()


def test_hanging_java_is_ended() -> None:
    """A stopped process would keep a rollout waiting for ever."""
    env = started(backend="isolated", timeout=5)
    pid = env._simulator.pid
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    with pytest.raises(EnvironmentFailureError, match="no answer within 5 s"):
        env.step("look around")
    assert eventually(lambda: not exists(pid))
    env.close()


def test_running_out_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java is told to end itself then, since what it answers afterwards cannot be trusted."""
    monkeypatch.setenv("_JAVA_OPTIONS", "-Xmx12m")
    env = ScienceWorldEnv(backend="isolated")
    with pytest.raises(EnvironmentFailureError, match="out of memory; set _JAVA_OPTIONS"):
        env.reset(options=TASK)
    monkeypatch.delenv("_JAVA_OPTIONS")
    env.reset(options=TASK)
    env.close()


class Assassin(ExpertPolicy):
    """An expert that kills Java in the middle of the second batch of turns."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def act(self, conversations: Any) -> Any:
        self.calls += 1
        generations = super().act(conversations)
        if self.calls == 2:
            env = conversations[0].expert.__self__
            os.kill(env._simulator.pid, signal.SIGKILL)
        return generations


def test_rollout_records_the_failure_and_goes_on() -> None:
    """Such episodes leave the loss; they are not zeros."""
    tasks = [f"lifespan-longest-lived/{i}" for i in range(3)]
    trajectories = rollout(Assassin(), "ScienceWorld-v0", tasks, n_slots=1, env_kwargs={"timeout": 62})
    assert [trajectory.stop_reason for trajectory in trajectories] == [StopReason.ENV_ERROR, "won", "won"]
    assert "killed by signal 9" in (trajectories[0].error or "")


def test_two_hundred_environments_leave_nothing_behind() -> None:
    """No zombie, no thread, no further process."""
    first = started()
    before = children(), threading.active_count(), len(os.listdir("/proc/self/fd"))
    for i in range(200):
        env = gym.make("ScienceWorld-v0", disable_env_checker=True)
        if i % 5 == 0:
            env.reset(options=TASK)
        env.close()
        env.close()
    assert (children(), threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
    first.close()


def test_isolated_environments_end_their_processes() -> None:
    """Closed, or forgotten without being closed."""
    before = children()
    env = started(backend="isolated")
    assert children() > before
    env.close()
    assert children() == before
    env = started(backend="isolated")
    pid = env._simulator.pid
    del env
    assert eventually(lambda: not exists(pid))


PROGRAM = """
import os, sys, time, agentgym_tlm, gymnasium as gym
env = gym.make("ScienceWorld-v0")
env.reset(options={"task_id": "lifespan-longest-lived/0"})
print(env.unwrapped._simulator.pid, flush=True)
"""


def run(rest: str) -> tuple[subprocess.Popen[str], int]:
    """Start a program that goes on with ``rest``; returns it and its Java process."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    return program, int(program.stdout.readline())


@pytest.mark.parametrize("rest", ["", "del env", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_java_ends_with_python_without_a_word(rest: str) -> None:
    """However Python ends; and no traceback of a destructor."""
    program, pid = run(rest)
    _, errors = program.communicate(timeout=60)
    assert errors == ""
    assert eventually(lambda: not exists(pid))


def test_ctrl_c_reaches_python_only() -> None:
    """The program can still save its work and look at its environment."""
    program, pid = run(
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt: print(env.step('look around')[4]['action_valid'], flush=True)\n"
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    os.killpg(program.pid, signal.SIGINT)
    output, errors = program.communicate(timeout=60)
    assert (output, errors) == ("True\n", "")
    assert eventually(lambda: not exists(pid))


def test_interrupt_in_the_middle_of_a_call_loses_no_reply() -> None:
    """The late reply must not be taken for that of the next action."""
    program, _ = run(
        "import signal\n"
        "env.unwrapped._simulator._jvm._process.send_signal(signal.SIGSTOP)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.5)\n"
        "try: env.step('inventory')\n"
        "except KeyboardInterrupt: pass\n"
        "from agentgym_tlm.errors import EnvironmentFailureError\n"
        "try: env.step('look around')\n"
        "except EnvironmentFailureError: print('failed')\n"
        "env.reset(options={'task_id': 'lifespan-longest-lived/0'})\n"
        "print(env.step('look around')[0][:9])\n"
    )
    output, errors = program.communicate(timeout=60)
    assert (output, errors) == ("failed\nThis room\n", "")


def test_forked_process_gets_its_own_java() -> None:
    """Parent and child would read each other's replies."""
    env = started(timeout=63)
    pid = env._simulator.pid
    text, *_ = env.step("look around")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(EnvironmentFailureError, match="forked"):
                env.step("teleport to kitchen")
            env.reset(options=TASK)
            own = env._simulator.pid
            answer = env.step("look around")[0]
            env._simulator.close()
            os.write(writing, f"{own}\n{answer}".encode())
            code = 0
        finally:
            os._exit(code)
    for _ in range(5):
        assert env.step("look around")[0] == text
    assert os.waitpid(child, 0)[1] == 0
    os.close(writing)
    with os.fdopen(reading) as told:
        java_pid, _, seen = told.read().partition("\n")
    assert int(java_pid) != pid
    assert seen == text
    assert env._simulator.usable
    env._simulator.close()


def test_java_ends_with_the_parent_though_a_child_lives() -> None:
    """A forked worker holds copies of everything that its parent has open."""
    program, pid = run("if os.fork() == 0:\n    time.sleep(8)\n    os._exit(0)\nos.kill(os.getpid(), 9)\n")
    program.wait(timeout=60)
    assert eventually(lambda: not exists(pid))
    os.killpg(program.pid, signal.SIGKILL)
    program.communicate()
