"""A toy world whose machinery can be broken from inside, for the tests of vector environments."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from typing import Any, ClassVar

from agentgym_tlm.envs.base import Info
from agentgym_tlm.envs.registration import register
from agentgym_tlm.errors import EnvironmentFailureError
from tests.toy_env import ToyEnv


class FragileEnv(ToyEnv):
    """``Toy-v0`` with actions that exit, kill, hang, interrupt or fail their process, or start another one."""

    in_process = False
    fail_reset: str | None = None
    times_closed: ClassVar[int] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        if (message := self.fail_reset) is not None:
            raise EnvironmentFailureError(message)
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if action == "exit":
            os._exit(3)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "hang":
            time.sleep(3600)
        if action == "interrupt":
            raise KeyboardInterrupt
        if action == "fail":
            raise EnvironmentFailureError("the lamp exploded")
        if action == "start":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            return (f"{child.pid} {tempfile.mkdtemp()}", *super().step("look")[1:])
        if action == "defect":
            raise _OddError(1, "two")
        if action == "pid":
            return (str(os.getpid()), *super().step("look")[1:])
        return super().step(action)

    def close(self) -> None:
        super().close()
        FragileEnv.times_closed += 1

    def secret(self) -> Any:
        """Something that no pipe can carry."""
        return lambda: None


class _OddError(Exception):
    """An exception that cannot be pickled, as third-party engines raise them."""

    def __init__(self, number: int, word: str) -> None:
        super().__init__(f"{word} is not {number}")


register("Fragile-v0", "tests.envs.fragile:FragileEnv", max_episode_steps=15)
