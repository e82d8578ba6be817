#!/usr/bin/env bash
# Compile the Java part of ScienceWorld-v0 (needs a JDK and the package scienceworld) into the jar that is shipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../agentgym_tlm/envs/scienceworld"
simulator="$("${PYTHON:-python}" -c 'from agentgym_tlm.envs.scienceworld.java import simulator_jar; print(simulator_jar())')"
classes="$(mktemp -d)"
trap 'rm -r "$classes"' EXIT
javac --release 11 -Xlint:all,-options -Werror -classpath "$simulator" -d "$classes" front/*.java
cp front/*.java "$classes/agentgym_tlm/"
jar --create --file front.jar --no-manifest --date=2026-01-01T00:00:00Z -C "$classes" agentgym_tlm
