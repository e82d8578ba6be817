"""Environments in worker processes, as the slots of a vector environment.

:class:`WorkerPool` answers the calls of an :class:`~agentgym_tlm.envs.group.EnvGroup` with groups in processes of their
own. They play at the same time, every call has a deadline, and a worker that dies or hangs is killed with all processes
that it has started, and replaced when one of its slots is next reset. Its temporary files go with it. Messages go
through pipes, never through shared memory; workers are started by ``spawn``, so that they inherit no threads, locks or
file descriptors.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec

from agentgym_tlm.envs.group import EnvGroup, Failure
from agentgym_tlm.errors import ConfigError, EnvironmentFailureError

START_TIMEOUT = 120.0
"""Seconds that a worker has to start and to make its environments."""
CLOSE_TIMEOUT = 10.0
"""Seconds that workers have to close their environments before they are killed."""

_SPAWN = multiprocessing.get_context("spawn")


class WorkerTraceback(Exception):
    """Where in a worker an exception was raised: the cause of the same exception in the calling process."""


class WorkerPool:
    """``num_slots`` environments, dealt out to ``num_workers`` processes.

    ``timeout`` is in seconds per slot and call. With ``recycle_after`` a worker is replaced after that many episodes.
    When a worker dies or exceeds its time, the episodes of all its slots are lost. Raises ConfigError when the
    environments' arguments cannot be sent, EnvironmentFailureError when a worker does not start, and whatever the
    environment's constructor raises.
    """

    def __init__(
        self,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        num_slots: int,
        num_workers: int,
        timeout: float,
        recycle_after: int | None = None,
    ) -> None:
        if multiprocessing.current_process().daemon:
            raise ConfigError("a daemonic process cannot start worker processes: pass workers=0")
        try:
            pickle.dumps((spec, kwargs))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"the environments' arguments cannot be sent to worker processes ({error}): pass values that can be "
                "pickled, or workers=0"
            ) from error
        self._spec = spec
        self._kwargs = dict(kwargs)
        self._timeout = timeout
        self._recycle_after = recycle_after
        self._slots = [range(num_slots)[index::num_workers] for index in range(num_workers)]
        self._workers: dict[int, _Worker] = {}
        self._lost: dict[int, Failure] = {}
        self._attributes: dict[int, dict[str, Any]] = {slot: {} for slot in range(num_slots)}
        self._owner = os.getpid()
        try:
            self._require_all()
        except BaseException:
            self.close()
            raise

    def reset(self, calls: Mapping[int, tuple[int, dict[str, Any]]]) -> dict[int, Any]:
        """As :meth:`EnvGroup.reset`; a worker that has died or has played enough is replaced first."""
        indices = {slot % len(self._slots) for slot in calls}
        self._retire(indices, self._recycle_after)
        for slot in calls:
            self._lost.pop(slot, None)
        self._start(indices)
        return self._play("reset", calls)

    def step(self, actions: Mapping[int, str]) -> dict[int, Any]:
        """As :meth:`EnvGroup.step`; a slot whose worker has been lost since its reset is a Failure, too."""
        return self._play("step", actions)

    def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Any]:
        """As :meth:`EnvGroup.call`. Raises EnvironmentFailureError when a worker fails."""
        self._require_all()
        return self._tell(dict.fromkeys(self._workers, ("call", name, args, kwargs)))

    def set_attr(self, name: str, values: Mapping[int, Any]) -> None:
        """As :meth:`EnvGroup.set_attr`. Raises EnvironmentFailureError when a worker fails."""
        self._require_all()
        shares = {index: {slot: values[slot] for slot in self._slots[index]} for index in self._workers}
        self._tell({index: ("set_attr", name, share) for index, share in shares.items()})
        for slot, value in values.items():
            self._attributes[slot][name] = value

    def close(self) -> None:
        """End all workers; those that do not close in time are killed."""
        if os.getpid() == self._owner:
            _end(list(self._workers.values()))
            self._workers.clear()

    def _play(self, command: str, calls: Mapping[int, Any]) -> dict[int, Any]:
        self._retire({slot % len(self._slots) for slot in calls})
        shares: dict[int, dict[int, Any]] = {}
        for slot, call in calls.items():
            if slot not in self._lost:
                shares.setdefault(slot % len(self._slots), {})[slot] = call
        results = self._exchange({index: (command, share) for index, share in shares.items()})
        return {slot: self._lost[slot] if slot in self._lost else results[slot] for slot in calls}

    def _tell(self, messages: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        results = self._exchange(messages)
        for index in range(len(self._slots)):  # which is also the worker's first slot
            if index not in self._workers:
                raise EnvironmentFailureError(self._lost[index].message)
        return results

    def _require_all(self) -> None:
        """Have every worker running. Raises EnvironmentFailureError when one does not start."""
        indices = range(len(self._slots))
        self._retire(indices)
        self._start(indices)
        self._tell({})

    def _retire(self, indices: Iterable[int], max_resets: int | None = None) -> None:
        """End those workers that are dead, have been reset that often, or owe a reply to an interrupted call."""
        if os.getpid() != self._owner:
            raise ConfigError(f"these environments belong to process {self._owner}: make others after forking")
        for index in indices:
            worker = self._workers.get(index)
            if worker is None:
                continue
            if worker.owes_reply or not worker.is_alive or (max_resets is not None and worker.resets >= max_resets):
                self._drop(index, Failure(f"{worker.name} has ended since its last reply"))

    def _start(self, indices: Iterable[int]) -> None:
        new = [index for index in indices if index not in self._workers]
        for index in new:
            attributes = {slot: self._attributes[slot] for slot in self._slots[index]}
            self._workers[index] = _Worker(self._spec, self._kwargs, attributes)
        try:
            self._gather(new)
        except Exception:
            _end([self._workers.pop(index) for index in new if index in self._workers])
            raise

    def _exchange(self, messages: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Results by slot of one message per worker; the slots of a worker that fails are left out, and lost."""
        for index, message in messages.items():
            self._workers[index].send(message, self._timeout * len(self._slots[index]))
        return self._gather(messages)

    def _gather(self, indices: Iterable[int]) -> dict[int, Any]:
        replies = {index: self._workers[index].receive() for index in indices}
        results: dict[int, Any] = {}
        for index, reply in replies.items():
            if isinstance(reply, Failure):
                self._drop(index, reply)
            elif isinstance(reply, dict):
                results |= reply
        for reply in replies.values():
            if isinstance(reply, _Raised):
                raise reply.error from WorkerTraceback(reply.traceback)
        return results

    def _drop(self, index: int, failure: Failure) -> None:
        _end([self._workers.pop(index)])
        self._lost |= dict.fromkeys(self._slots[index], failure)


@dataclass(frozen=True)
class _Raised:
    """A worker's reply to a call that raised."""

    error: Exception
    traceback: str


class _Worker:
    """A process that serves an :class:`EnvGroup`, seen from outside. Its first reply says that it is ready."""

    def __init__(self, spec: EnvSpec, kwargs: Mapping[str, Any], attributes: Mapping[int, Mapping[str, Any]]) -> None:
        self.resets = 0
        self.owes_reply = True
        self._command = "start"
        self._deadline = time.monotonic() + START_TIMEOUT
        self._connection, theirs = _SPAWN.Pipe()
        self._folder = tempfile.mkdtemp(prefix="agentgym-tlm-worker-")
        self._process = _SPAWN.Process(
            target=_serve, args=(theirs, self._folder, spec, kwargs, attributes), daemon=True
        )
        self._process.start()
        theirs.close()
        self.name = f"the environment's worker process {self._process.pid}"

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send(self, message: tuple[Any, ...], timeout: float) -> None:
        """Ask for something, within ``timeout`` seconds. A worker that is gone is reported by :meth:`receive`."""
        self._command = message[0]
        self._deadline = time.monotonic() + timeout
        self.resets += self._command == "reset"
        self.owes_reply = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message)

    def receive(self) -> Any:
        """The reply: results by slot, None, a _Raised; or a Failure: of the worker, or one that the call raised."""
        if not wait([self._connection, self._process.sentinel], max(0.0, self._deadline - time.monotonic())):
            return Failure(f"{self.name} did not answer to {self._command!r} in time and was killed")
        if self._connection.poll():
            with contextlib.suppress(EOFError, ConnectionResetError):
                reply = self._connection.recv()
                self.owes_reply = False
                if isinstance(reply, _Raised) and isinstance(reply.error, EnvironmentFailureError):
                    return Failure(str(reply.error))
                return reply
        self._process.join(1.0)
        message = f"{self.name} died with exit code {self._process.exitcode} at {self._command!r}"
        if self._command == "start":
            message += "; it imports the script, which must be a file and act only under `if __name__ == '__main__':`"
        return Failure(message)

    def leave(self) -> None:
        """Begin to end the process: politely, unless it is busy with something else."""
        if self.owes_reply:
            self._kill()
        else:
            self.send(("close",), CLOSE_TIMEOUT)

    def bury(self) -> None:
        """Wait for the end of the process, kill it after its time, and release what belongs to it."""
        self._process.join(max(0.0, self._deadline - time.monotonic()))
        if self._process.exitcode is None:
            self._kill()
            self._process.join()
        self._connection.close()
        self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        """End the process and all that it has started: its engine may hang, and not notice that it is alone."""
        if self._process.pid is None or not self._process.is_alive():
            return
        started = _descendants(self._process.pid)
        self._process.kill()
        for pid in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.leave()
    for worker in workers:
        worker.bury()


def _descendants(pid: int) -> list[int]:
    """Processes that a process has started, and that these have; none where there is no ``/proc``."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in the second field may hold anything, brackets and blanks included.
            parent = int(status.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def _serve(
    connection: Connection,
    folder: str,
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    attributes: Mapping[int, Mapping[str, Any]],
) -> None:
    """A worker's whole life. It ends with ``close``, or when the calling process has gone.

    Temporary files go into ``folder``, which the calling process deletes, or nobody would after a kill.
    """
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the calling process, which then closes
    group: EnvGroup | None = None
    try:
        group = EnvGroup(spec, kwargs, attributes, attributes)
    except Exception as error:  # noqa: BLE001
        connection.send_bytes(_raised(error))
        return
    connection.send(None)
    with contextlib.closing(group), contextlib.suppress(EOFError, ConnectionError):
        while (message := connection.recv())[0] != "close":
            command, *arguments = message
            try:
                reply = pickle.dumps(getattr(group, command)(*arguments))
            except Exception as error:  # noqa: BLE001
                reply = _raised(error)
            connection.send_bytes(reply)


def _raised(error: Exception) -> bytes:
    """The reply that makes the calling process raise the error; one that cannot be sent is named in another."""
    text = traceback.format_exc()
    try:
        reply = pickle.dumps(_Raised(error, text))
        pickle.loads(reply)
    except Exception:  # noqa: BLE001
        return pickle.dumps(_Raised(RuntimeError(f"{type(error).__name__}: {error}"), text))
    return reply
