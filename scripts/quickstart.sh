#!/usr/bin/env bash
# The main job on a fresh machine: install the package into .venv, then generate games, imitate the expert, sample,
# train tlm-DRE and evaluate before and after. Arguments go to `agentgym-tlm train`.
set -euo pipefail
caller="$PWD"
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

install_once package --editable .
cd "$caller"
exec agentgym-tlm train --trainer tlm-dre "$@"
