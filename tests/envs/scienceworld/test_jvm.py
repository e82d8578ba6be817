"""Starting Java, calling into it, and ending it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tlm.envs.scienceworld import jvm
from agentgym_tlm.envs.scienceworld.java import gateway_jar
from agentgym_tlm.envs.scienceworld.jvm import Call, JavaError, Jvm, Ref
from agentgym_tlm.errors import EnvironmentFailureError

STRING = Ref("z:java.lang.String")


def start(java: str, folder: Path) -> Jvm:
    return Jvm(java, [gateway_jar()], folder, deterministic=True)


@pytest.fixture(scope="module")
def process(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """A Java process."""
    process = start(java, tmp_path_factory.mktemp("jvm"))
    yield process
    process.close()


def script(folder: Path, *lines: str) -> str:
    file = folder / "java"
    file.write_text("\n".join(["#!/bin/sh", *lines]), encoding="utf-8")
    file.chmod(0o755)
    return str(file)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_text_arrives_unchanged(process: Jvm, text: str) -> None:
    """Line ends and backslashes are escaped, everything else is UTF-8, both ways."""
    assert process.connection.call(STRING, "join", "", make_list(process, text)) == text


def make_list(process: Jvm, *texts: str) -> Ref:
    """A ``java.util.ArrayList``."""
    new = process.connection.call(Ref("z:java.util.ArrayList"), "new")
    assert isinstance(new, Ref)
    process.connection.batch([Call(new, "add", (text,)) for text in texts])
    return new


def test_values_of_all_kinds(process: Jvm) -> None:
    call = process.connection.call
    assert call(Ref("z:java.lang.Math"), "max", 3, 5) == 5
    assert call(Ref("z:java.lang.Math"), "max", 2**40, 5) == 2**40
    assert call(Ref("z:java.lang.Double"), "parseDouble", "3.5") == 3.5
    assert call(Ref("z:java.lang.Boolean"), "logicalXor", True, False) is True
    assert call(Ref("z:java.lang.System"), "getProperty", "no such property") is None
    words = make_list(process, "b", "a")
    assert process.connection.batch([Call(words, "size"), Call(words, "get", (0,)), Call(words, "clear")]) == [
        2,
        "b",
        None,
    ]
    process.connection.batch([], release=[words])
    with pytest.raises(JavaError, match="does not exist"):
        call(words, "size")


def test_an_exception_spoils_no_other_reply(process: Jvm) -> None:
    """The replies to all calls of a batch are read, or the next call would get an old one's."""
    number = Ref("z:java.lang.Integer")
    with pytest.raises(JavaError, match='NumberFormatException: For input string: "x"'):
        process.connection.batch([Call(number, "parseInt", ("x",)), Call(number, "parseInt", ("7",))])
    assert process.connection.call(number, "parseInt", "8") == 8


def test_large_replies_are_whole(process: Jvm) -> None:
    """A list of valid actions has 45 kB."""
    text = "connect agent to air\n" * 5000
    assert process.connection.call(STRING, "join", "", make_list(process, text)) == text


def test_warnings_before_the_port_do_no_harm(java: str, tmp_path: Path) -> None:
    """Any warning on standard output keeps ScienceWorld's own wrapper from starting."""
    noisy = script(tmp_path, "echo '[0.001s][warning] large pages'", "echo 'Picked up 12345' >&2", f'exec {java} "$@"')
    process = start(noisy, tmp_path)
    assert process.running
    process.close()
    assert not process.running


def test_a_java_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Java printed is in the message, whether it ends, hangs, or is not there."""
    with pytest.raises(EnvironmentFailureError, match=r"ended before it started its server\. It printed: no room"):
        start(script(tmp_path, "echo no room for the heap >&2"), tmp_path)
    monkeypatch.setattr(jvm, "START_SECONDS", 0.3)
    with pytest.raises(EnvironmentFailureError, match=r"within 0.3 s. It printed: please wait"):
        start(script(tmp_path, "echo please wait", "exec sleep 60"), tmp_path)
    with pytest.raises(EnvironmentFailureError, match="No such file"):
        start(str(tmp_path / "nothing"), tmp_path)


def test_strangers_are_not_served(process: Jvm) -> None:
    """Any user of the machine can connect to the port; without the token nobody can call."""
    with socket.create_connection(process.connection.address, timeout=30) as stranger:
        assert stranger.getpeername()[0] == "127.0.0.1"
        stranger.sendall(b"A\nguess\nc\nz:java.lang.System\nexit\ni1\ne\n")
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    assert process.running
    assert process.connection.call(Ref("z:java.lang.Math"), "abs", -2) == 2


def test_end_is_final_and_leaves_no_zombie(java: str, tmp_path: Path) -> None:
    """Closing twice, killing, and closing after a kill."""
    for end in (Jvm.close, Jvm.kill):
        process = start(java, tmp_path)
        end(process)
        end(process)
        process.close()
        assert subprocess.run(["ps", "-p", str(process.pid)], capture_output=True, check=False).returncode == 1
