#!/usr/bin/env bash
# The README's table of the online methods on generated games: about half an hour each from the SFT policy of the main job's
# seed 0, two at a time on two cores; then before and after.
set -euo pipefail
export runs="${1:-runs/online}" iterations="${ITERATIONS:-50}"
train() {
  local run="$runs/$1"
  shift
  agentgym-tlm train --data-dir embedded --output-dir "$run" "$@" $([[ -e "$run/config.yaml" ]] && echo --resume)
}
improve() {
  train "$1" --trainer "$1" --sft-policy "$runs/sft/sft/policy" --"$1".num-iterations "$iterations"
}
export -f train improve
train sft --trainer sft
printf '%s\n' ppo rloo grpo gigpo | xargs -P 2 -I{} bash -euo pipefail -c 'improve {}'
for trainer in ppo rloo grpo gigpo; do
  python "$(dirname "${BASH_SOURCE[0]}")/seeds.py" "$runs/$trainer"
done
