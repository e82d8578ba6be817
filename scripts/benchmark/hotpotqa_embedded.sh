#!/usr/bin/env bash
# The README's table on the questions of the embedded world: the main job with seed 0, then its before and after.
set -euo pipefail
run="${1:-runs/hotpotqa}/seed0"
agentgym-tlm train --trainer tlm-dre --env HotpotQA-v0 --data-dir embedded --output-dir "$run" \
  $([[ -e "$run/config.yaml" ]] && echo --resume)
python "$(dirname "${BASH_SOURCE[0]}")/seeds.py" "$run"
