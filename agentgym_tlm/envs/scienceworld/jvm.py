"""A Java process of our own, and how to call into it.

The process runs the server of py4j, which calls methods on Java objects by request. Both py4j's way of starting it and
its Python client are replaced here, because for an environment they fail in ways that matter:

1. Its starter takes the first line of output for the port, so that any warning of Java's breaks it; and it opens a
   second server, back into Python, that nobody uses.
2. Its client waits for ever for a hung process, logs tracebacks for every lost connection, and frees objects from
   Python's garbage collector, in the middle of other calls and in forked children.
3. A call costs a round trip; :meth:`Connection.batch` sends many at once.

The process listens on the loopback interface only and asks for a secret token. It is in a session of its own, so that
Ctrl-C does not reach it; it ends when its standard input closes, which happens at the latest when Python ends, however
that ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_tlm.errors import EnvironmentFailureError

DETERMINISTIC = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""All objects get the same identity hash, so that sets are iterated in the order in which they were filled."""
OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    f"-XX:ErrorFile={os.devnull}",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "-Duser.language=en",
    "-Duser.country=US",
    "-Dfile.encoding=UTF-8",
)
START_SECONDS = 60.0

_OUT_OF_MEMORY = 3
"""Exit code of ``-XX:+ExitOnOutOfMemoryError``."""
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", "r": "\r", "\\": "\\"}
_ADDRESS = re.compile(rb"^(\d+)\r?\n([^\r\n]+)\r?\n", re.MULTILINE)


class JavaError(EnvironmentFailureError):
    """A Java method raised; the message is the exception's class and text. The connection can be used further."""


class Ref(NamedTuple):
    """A Java object, or with the prefix ``z:`` a class, by the name that the server knows it by."""

    id: str


class Call(NamedTuple):
    """A method call, ``target.method(*args)``, or with the method ``new`` a class's constructor."""

    target: Ref
    method: str
    args: tuple[Any, ...] = ()


class Jvm:
    """A running Java process and the one connection to it. Raises EnvironmentFailureError when it does not start."""

    def __init__(self, java: str, jars: Sequence[Path], folder: Path, *, deterministic: bool) -> None:
        classpath = os.pathsep.join(map(str, jars))
        options = (*(DETERMINISTIC if deterministic else ()), *OPTIONS, "-classpath", classpath)
        try:
            self._process = subprocess.Popen(
                [java, *options, "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentFailureError(f"Java does not start: {error}") from error
        try:
            self.connection = Connection(*self._read_address(time.monotonic() + START_SECONDS))
            self._prepare(self.connection.call)
        except BaseException as error:
            self._kill()
            if isinstance(error, OSError):
                raise EnvironmentFailureError(f"Java's server does not take calls: {error}") from error
            raise
        _running.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, and wait for its end. Safe to call twice."""
        self.connection.close()
        self._close_pipes()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._kill()

    def kill(self) -> None:
        """End the process at once, even if it hangs. Safe to call twice."""
        self.connection.close()
        self._kill()

    def disown(self) -> None:
        """Close a forked child's copies of what belongs to its parent; the process goes on."""
        self.connection.close()
        self._close_pipes()
        self._process.returncode = 0  # of a process that is not this one's child, nothing can be learnt or awaited

    def obituary(self) -> str:
        """How the process ended, for an error message."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the connection to Java broke"
        if code == _OUT_OF_MEMORY:
            return "Java ran out of memory; set _JAVA_OPTIONS=-Xmx1g to give it more"
        return f"Java was killed by signal {-code}" if code < 0 else f"Java ended with exit code {code}"

    def _prepare(self, call: Callable[..., Any]) -> None:
        """Silence the process, as nobody reads its output from now on, and make its replies prompt."""
        nothing = call(Ref("z:java.io.PrintStream"), "new", call(Ref("z:java.io.OutputStream"), "nullOutputStream"))
        call(Ref("z:java.lang.System"), "setOut", nothing)
        call(Ref("z:java.lang.System"), "setErr", nothing)
        # A reply above 8 KB is sent in pieces, each of which would wait 40 ms for the receipt of the one before.
        server = Ref("GATEWAY_SERVER")
        connections = call(call(server, "getClass"), "getDeclaredField", "connections")
        call(connections, "setAccessible", True)
        call(call(call(call(connections, "get", server), "get", 0), "getSocket"), "setTcpNoDelay", True)

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _read_address(self, deadline: float) -> tuple[int, str]:
        """The port and the token that the server prints, among whatever else Java prints first."""
        output = b""
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                received = os.read(stdout.fileno(), 4096)
                output += received
                if (address := _ADDRESS.search(output)) is not None:
                    return int(address[1]), address[2].decode()
                if not received:
                    reason = "Java ended before it started its server"
                    break
            else:
                reason = f"Java did not start its server within {START_SECONDS:g} s"
        printed = output.decode(errors="replace").strip()
        raise EnvironmentFailureError(f"{reason}. It printed: {printed[:2000] or '-'}")


class Connection:
    """Calls into a Java process, one batch at a time. After any error but JavaError it cannot be used any more."""

    def __init__(self, port: int, token: str) -> None:
        self.address = ("127.0.0.1", port)
        self._socket = socket.create_connection(self.address, timeout=START_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._exchange([f"A\n{token}\n"], time.monotonic() + START_SECONDS)

    def call(self, target: Ref, method: str, *args: Any, seconds: float = START_SECONDS) -> Any:
        """The result of one call: a string, number, boolean, None, or a Ref, which lives until it is released."""
        return self.batch([Call(target, method, args)], seconds=seconds)[0]

    def batch(self, calls: Sequence[Call], *, release: Iterable[Ref] = (), seconds: float = START_SECONDS) -> list[Any]:
        """The results of calls that are made one after another, and then ``release`` these objects.

        Raises JavaError for the first call that raised (the others are made nevertheless), TimeoutError when the
        results are not there after ``seconds``, OSError when the process is gone.
        """
        deadline = time.monotonic() + seconds
        commands = [f"m\nd\n{ref.id}\ne\n" for ref in release]
        commands[:0] = [_command(call) for call in calls]
        results = [_result(line) for line in self._exchange(commands, deadline)[: len(calls)]]
        errors = [result for result in results if isinstance(result, _Raised)]
        if errors:
            described = [Call(error.exception, "toString") for error in errors if error.exception is not None]
            commands = [*map(_command, described), *(f"m\nd\n{call.target.id}\ne\n" for call in described)]
            texts = [_result(line) for line in self._exchange(commands, deadline)[: len(described)]]
            raise JavaError(texts[0] if errors[0].exception is not None else errors[0].text)
        return results

    def close(self) -> None:
        """Close this end. Safe to call twice."""
        self._socket.close()

    def _exchange(self, commands: Sequence[str], deadline: float) -> list[str]:
        """Send commands and read the reply to each, a line."""
        self._set_timeout(deadline)
        self._socket.sendall("".join(commands).encode(errors="replace"))
        chunks = [self._received]
        missing = len(commands) - self._received.count(b"\n")
        while missing > 0:
            self._set_timeout(deadline)
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise ConnectionResetError("the Java process closed the connection")
            missing -= chunk.count(b"\n")
            chunks.append(chunk)
        *lines, self._received = b"".join(chunks).split(b"\n")
        return [line.decode() for line in lines]

    def _set_timeout(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the Java process did not answer in time")
        self._socket.settimeout(left)


class _Raised(NamedTuple):
    """An error reply: the Java exception, or the server's own complaint."""

    exception: Ref | None
    text: str


def _command(call: Call) -> str:
    arguments = "".join(f"{_argument(value)}\n" for value in call.args)
    if call.method == "new":
        return f"i\n{call.target.id.removeprefix('z:')}\n{arguments}e\n"
    return f"c\n{call.target.id}\n{call.method}\n{arguments}e\n"


def _argument(value: str | int | bool | Ref | None) -> str:
    if value is None:
        return "n"
    if isinstance(value, Ref):
        return f"r{value.id}"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
        return f"s{escaped}"
    if isinstance(value, bool):
        return f"b{str(value).lower()}"
    return f"i{value}" if -(2**31) <= value < 2**31 else f"L{value}"


def _result(line: str) -> Any:
    """The value in a reply such as ``!ys<text>``, ``!yro12`` or ``!xro13``."""
    status, kind, text = line[:2], line[2:3], line[3:]
    if kind == "s":
        text = _ESCAPED.sub(lambda match: _UNESCAPED.get(match[1], match[1]), text)
    if status != "!y":
        return _Raised(Ref(text) if kind == "r" else None, text or "the server gave no reason")
    if kind in "iL":
        return int(text)
    if kind == "d":
        return float(text)
    if kind == "b":
        return text == "true"
    if kind == "s":
        return text
    return None if kind in "vn" else Ref(text)


_running: weakref.WeakSet[Jvm] = weakref.WeakSet()


def _disown_all() -> None:
    for jvm in list(_running):
        jvm.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
