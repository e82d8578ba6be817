#!/usr/bin/env bash
# The README's table on ScienceWorld's short protocol: the main job with seed 0, then its before and after.
set -euo pipefail
run="${1:-runs/scienceworld}/seed0"
agentgym-tlm train --trainer tlm-dre --env ScienceWorld-v0 --output-dir "$run" \
  $([[ -e "$run/config.yaml" ]] && echo --resume)
python "$(dirname "${BASH_SOURCE[0]}")/seeds.py" "$run"
