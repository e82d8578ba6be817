#!/usr/bin/env bash
# The README's table on the official games, found by ALFWORLD_DATA: five passes over the expert's play of all of train.
set -euo pipefail
run="${1:-runs/official}"
agentgym-tlm train --trainer tlm-dre --max-episode-steps 40 --sft.num-train-epochs 5 --output-dir "$run" \
  $([[ -e "$run/config.yaml" ]] && echo --resume)
python "$(dirname "${BASH_SOURCE[0]}")/seeds.py" "$run"
