#!/usr/bin/env bash
# The README's table on generated games: the main job with three seeds, then their before and after.
set -euo pipefail
runs="${1:-runs/embedded}"
for seed in 0 1 2; do
  run="$runs/seed$seed"
  agentgym-tlm train --trainer tlm-dre --data-dir embedded --seed "$seed" --output-dir "$run" \
    $([[ -e "$run/config.yaml" ]] && echo --resume)
done
python "$(dirname "${BASH_SOURCE[0]}")/seeds.py" "$runs"/seed*
