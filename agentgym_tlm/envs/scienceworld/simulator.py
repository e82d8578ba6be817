"""Many worlds in one Java process, each as if it were alone.

ScienceWorld's own wrapper starts a Java process per environment and lists all possible actions at every step; together
that makes it about ten times slower and, for eight environments, fifteen times larger than this. Here a world is one
object of the simulator (its ``AgentInterface``). Three things are shared by all worlds of a process and are put in
order whenever another world than the last one is called:

1. the counter of object ids and the state of the random number generator are saved and restored;
2. the simplifications are set again where they differ.

(There is a fourth, the table of object types, which is only read.) A world is loaded by ``load`` alone. The
simulator's ``reset`` is never used: it loads everything once more and, after a gold path has been asked for, also makes
the gold path of every later task, which takes seconds.

Two small Java classes of our own, in ``front/``, stand before the simulator: one drops the 10 MB that a load leaves
behind, the other reads actions to the same result in a fraction of the time.

With ``deterministic=True`` the same calls on a world give the same results to the letter in every process, on every
Java tried (17 and 25), whatever other worlds do. Otherwise the order in which things are listed, and now and then what
happens, differs from run to run, as it does with the stock simulator (allenai/ScienceWorld#33).
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentgym_tlm.envs.scienceworld.java import FRONT_JAR, gateway_jar, simulator_jar
from agentgym_tlm.envs.scienceworld.jvm import START_SECONDS, Call, JavaError, Jvm, Ref
from agentgym_tlm.errors import EnvironmentFailureError

NO_MATCH = "No known action matches that input."
UNKNOWN_ACTION = (
    "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents."
)
"""What the simulator's front says when the world says nothing."""
FRONT_WORDS = ("help", "objects", "task")
"""What the simulator's front answers without asking the world; free of time, as are ``look`` and ``inventory``."""

_IDS = Ref("z:util.UniqueIdentifier")
_SIMPLIFIER = Ref("z:main.scala.scienceworld.runtime.SimplifierProcessor")
_STRING = Ref("z:java.lang.String")
_CLASS = Ref("z:java.lang.Class")
_SCRAMBLE = 0x5DEECE66D
"""``java.util.Random.setSeed`` stores its argument xor this."""


@dataclass(frozen=True)
class State:
    """What a world shows after an action. ``score`` is the simulator's, from -100 to 100; ``moves`` its clock."""

    observation: str
    score: int
    completed: bool
    moves: int
    look: str
    inventory: str
    ambiguous: bool
    """The observation asks which of several readings of the action is meant."""
    crashed: bool
    """The action made the simulator's parser raise an exception; nothing was done."""


@dataclass(eq=False)
class World:
    """A task being played in a :class:`Simulator`: names of its objects in Java, which live as long as this does."""

    description: str
    """The task, in the simulator's words."""
    simplifications: str
    option: Ref
    agent: Ref
    goals: Ref
    parser: Ref
    shared: tuple[int, int] = (0, 0)
    """Object counter and random state, as they were when another world was called after this one."""


class Simulator:
    """The simulator in a Java process of its own. Threads may share it; it does one thing at a time.

    Raises EnvironmentFailureError when Java does not start. Every method does so, and ends the process, when Java is
    gone, gives no answer for ``timeout`` seconds, or belongs to the process from which this one was forked.
    """

    def __init__(self, java: str, *, deterministic: bool, timeout: float) -> None:
        self._timeout = START_SECONDS
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._failure: str | None = None
        self._garbage: deque[Ref] = deque()
        self._current: World | None = None
        self._simplifications: str | None = None
        jar = simulator_jar()
        self._jvm = Jvm(java, [FRONT_JAR, gateway_jar(), jar], jar.parent, deterministic=deterministic)
        self._finalizer = weakref.finalize(self, self._jvm.close)
        with self._alone():
            self._prepare()
        self._timeout = timeout

    @property
    def pid(self) -> int:
        """Of the Java process."""
        return self._jvm.pid

    @property
    def usable(self) -> bool:
        """Whether worlds can be loaded and played here and now."""
        return self._failure is None and self._owner == os.getpid() and self._jvm.running

    def load(self, task: str, variation: int, simplifications: str) -> World:
        """A new world, in which nothing has happened yet; ``simplifications`` are names with commas."""
        with self._alone():
            return self._load(task, variation, simplifications)

    def gold_path(self, task: str, variation: int, simplifications: str) -> list[str]:
        """What the simulator's own expert, which knows everything, would do in a task."""
        with self._alone():
            self._leave()
            path: str = self._call(self._front, "goldPath", task, variation, simplifications)
            return path.split("\n") if path else []

    def step(self, world: World, action: str) -> State:
        """Perform an action in a world, or ask one of ``FRONT_WORDS``. Any string is answered."""
        seen = [
            Call(world.goals, "score"),
            Call(world.goals, "isCompleted"),
            Call(world.agent, "getCurIterations"),
            Call(world.agent, "freeActionLook"),
            Call(world.agent, "freeActionInventory"),
            Call(world.parser, "isInAmbiguousState"),
            Call(world.agent, "isInErrorState"),
        ]
        crashed = False
        with self._alone():
            self._enter(world)
            try:
                if action.strip().lower() in FRONT_WORDS:
                    _, answer, *values = self._batch([self._facing(world), Call(self._front, "step", (action,)), *seen])
                else:
                    result, *values = self._batch([Call(world.agent, "step", (action,)), *seen])
                    answer = self._call(result, "_1")
                    self._garbage.append(result)
            except JavaError:
                crashed = True
                answer, values = NO_MATCH, self._batch(seen)
            score, completed, moves, look, inventory, ambiguous, broken = values
            if broken:
                message = self._call(world.agent, "getErrorStateMessage")
                raise EnvironmentFailureError(f"the simulator broke down on {action!r}: {message}")
        return State(
            observation=answer or UNKNOWN_ACTION,
            score=round(100 * score),
            completed=completed,
            moves=moves,
            look=_tidy(look),
            inventory=_tidy(inventory),
            ambiguous=ambiguous,
            crashed=crashed,
        )

    def valid_actions(self, world: World) -> list[str]:
        """All actions that the simulator proposes now, sorted: up to 1,400 in a kitchen. Leaves no trace.

        Of several names that a thing has, the simulator draws one by its random number generator: that is put back, so
        that what happens later does not depend on whether somebody asked.
        """
        with self._alone():
            self._enter(world)
            listing = [self._facing(world), Call(self._front, "getValidActionObjectCombinations")]
            *shared, _, actions = self._batch([*self._saving, *listing])
            joined, *_ = self._batch([Call(_STRING, "join", ("\n", actions)), *self._restoring(*shared)])
            self._garbage.append(actions)
            return sorted(set(joined.split("\n")))

    def cancel_question(self, world: World) -> None:
        """Forget which readings of an ambiguous action there were; takes no time, unlike answering with nonsense."""
        with self._alone():
            self._enter(world)
            self._call(world.parser, "clearAmbiguousState")

    def close(self) -> None:
        """End the Java process. Safe to call twice."""
        self._failure = self._failure or "the simulator has been closed: call reset() to go on with a new one"
        self._finalizer()

    def _load(self, task: str, variation: int, simplifications: str) -> World:
        self._leave()
        message = self._call(self._front, "load", task, variation, simplifications)
        if message:
            raise EnvironmentFailureError(f"the simulator does not load {task}/{variation}: {message}")
        option = self._call(self._front, "agentInterface")
        agent = self._call(option, "get")
        task_object, parser, description = self._batch(
            [Call(agent, "task"), Call(agent, "inputParser"), Call(agent, "getTaskDescription")]
        )
        goals = self._call(task_object, "goalSequence")
        self._garbage.append(task_object)
        world = World(description, simplifications, option, agent, goals, parser)
        weakref.finalize(world, self._garbage.extend, (option, agent, goals, parser)).atexit = False
        self._current, self._simplifications = world, simplifications
        return world

    def _leave(self) -> None:
        """Keep what the worlds share, as the world that is in force leaves it."""
        if self._current is not None:
            count, seed = self._batch(self._saving)
            self._current.shared = (count, seed)
        self._current = self._simplifications = None

    def _enter(self, world: World) -> None:
        """Put in force what the worlds share, as ``world`` left it."""
        if self._current is world:
            return
        restoring = self._restoring(*world.shared)
        if self._simplifications != world.simplifications:
            restoring.append(Call(_SIMPLIFIER, "parseSimplificationStr", (world.simplifications,)))
        if self._current is None:
            results = self._batch(restoring)
        else:
            results = self._batch([*self._saving, *restoring])
            self._current.shared = (results[0], results[1])
        self._garbage.extend(result for result in results if isinstance(result, Ref))
        self._current, self._simplifications = world, world.simplifications

    @property
    def _saving(self) -> list[Call]:
        return [Call(_IDS, "count"), Call(self._seed, "get", (self._random,))]

    def _restoring(self, count: int, seed: int) -> list[Call]:
        return [Call(_IDS, "count_$eq", (count,)), Call(self._random, "setSeed", (seed ^ _SCRAMBLE,))]

    def _facing(self, world: World) -> Call:
        """Turns the front, which answers for the world that was loaded last, to another."""
        return Call(self._front, "agentInterface_$eq", (world.option,))

    def _prepare(self) -> None:
        """Find the objects that all worlds share."""
        call = self._call
        self._front = call(Ref("z:agentgym_tlm.Front"), "new")
        scala_random = call(call(call(_CLASS, "forName", "scala.util.Random$"), "getField", "MODULE$"), "get", None)
        self._random = call(scala_random, "self")
        self._seed = call(call(_CLASS, "forName", "java.util.Random"), "getDeclaredField", "seed")
        call(self._seed, "setAccessible", True)

    def _call(self, target: Ref, method: str, *args: Any) -> Any:
        """The result of one call."""
        return self._batch([Call(target, method, args)])[0]

    def _batch(self, calls: Sequence[Call]) -> list[Any]:
        """The results of several calls. Raises JavaError for the first that raised."""
        if self._owner != os.getpid():
            raise EnvironmentFailureError("this process was forked from the environment's: call reset() here first")
        if self._failure is not None:
            raise EnvironmentFailureError(self._failure)
        released = [self._garbage.popleft() for _ in range(len(self._garbage))]
        return self._jvm.connection.batch(calls, release=released, seconds=self._timeout)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time. What breaks off in the middle, an interrupt included, ends the process.

        Its late reply would be taken for that of the next call, and nobody would know whose state is in force.
        """
        with self._lock:
            try:
                yield
            except EnvironmentFailureError:
                raise
            except BaseException as error:
                late = isinstance(error, TimeoutError)
                reason = f"no answer within {self._timeout:g} s" if late else self._jvm.obituary()
                self._failure = f"the simulator failed ({reason}): call reset() to go on with a new one"
                self._jvm.kill()
                if isinstance(error, OSError):
                    raise EnvironmentFailureError(self._failure) from error
                raise


def _tidy(text: str) -> str:
    """Spaces as the simulator has them in observations."""
    return re.sub(" +", " ", text.strip())


_shared: dict[tuple[str, bool, float], Simulator] = {}
_shared_lock = threading.Lock()


def shared_simulator(java: str, *, deterministic: bool, timeout: float) -> Simulator:
    """The simulator of this process with these options, started when there is none that works; it ends with Python."""
    key = (java, deterministic, timeout)
    with _shared_lock:
        simulator = _shared.get(key)
        if simulator is None or not simulator.usable:
            simulator = _shared[key] = Simulator(java, deterministic=deterministic, timeout=timeout)
        return simulator


def _start_afresh() -> None:
    """A forked child shares nothing with its parent, not even a lock that another thread may have held."""
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
