"""ScienceWorld's own word on what it has, asked without anything of ours in between but the connection."""

from __future__ import annotations

from typing import Any

from agentgym_tlm.envs.scienceworld.java import gateway_jar, simulator_jar
from agentgym_tlm.envs.scienceworld.jvm import Jvm, Ref


class Front:
    """A ``PythonInterface``, the object on which ScienceWorld's own wrapper calls, in a Java process of its own."""

    def __init__(self, java: str) -> None:
        jar = simulator_jar()
        self._jvm = Jvm(java, [gateway_jar(), jar], jar.parent, deterministic=True)
        self._front = self._call(Ref("z:scienceworld.runtime.pythonapi.PythonInterface"), "new")

    def task_names(self) -> list[str]:
        return self._strings("getTaskNames")

    def variations(self, task: str) -> tuple[int, list[list[int]]]:
        """How many a task has, and which are for training, development and test."""
        self._call(self._front, "load", task, 0, "", False)
        names = ("getVariationsTrain", "getVariationsDev", "getVariationsTest")
        splits = [[int(number) for number in self._strings(name)] for name in names]
        return self._call(self._front, "getTaskMaxVariations", task), splits

    def simplifications_of(self, preset: str, task: str) -> str:
        """What a preset stands for, for a task: names with commas."""
        self._call(self._front, "load", task, 0, preset, False)
        return str(self._call(self._front, "getSimplificationsUsed")).replace(", ", ",")

    def close(self) -> None:
        self._jvm.close()

    def _strings(self, method: str) -> list[str]:
        text: str = self._call(self._call(self._front, method), "toString")
        return text.strip("[]").split(", ")

    def _call(self, target: Ref, method: str, *args: Any) -> Any:
        return self._jvm.connection.call(target, method, *args)
