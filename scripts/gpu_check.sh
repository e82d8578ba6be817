#!/usr/bin/env bash
# Speed, memory and correctness of training and playing on a GPU, in at most 5 minutes and without downloads.
#
#   scripts/gpu_check.sh [--wheels FOLDER] [OPTIONS OF gpu_check.py]
#   scripts/gpu_check.sh --fetch FOLDER
#
# It needs this repository, Python 3.10 or newer (PYTHON=... names one), and torch with CUDA, transformers 5, accelerate
# and peft, with what they install themselves. Of the package's other dependencies (gymnasium, tyro and what they need,
# all pure Python) those that are missing go to a temporary folder: from the wheels in FOLDER, which --fetch downloads on
# a machine with a network, else from the network. Nothing else is installed, and nothing that is there is replaced.
# No model, tokenizer or data is needed. `--dry-run` runs all of it on a CPU with tiny dimensions.
set -euo pipefail
repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
packages=(gymnasium farama-notifications cloudpickle tyro docstring-parser typeguard rich markdown-it-py mdurl pygments)
modules=(gymnasium farama_notifications cloudpickle tyro docstring_parser typeguard rich markdown_it mdurl pygments)

if [[ "${1:-}" == --fetch ]]; then
  exec "$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "${2:?--fetch needs a folder}" "${packages[@]}"
fi
source=()
if [[ "${1:-}" == --wheels ]]; then
  source=(--no-index --find-links "${2:?--wheels needs a folder}")
  shift 2
fi
missing=()
for i in "${!modules[@]}"; do
  if ! "$python" -c "import sys, importlib.util as u; sys.exit(u.find_spec('${modules[i]}') is None)"; then
    missing+=("${packages[i]}")
  fi
done
if ((${#missing[@]})); then
  site="$(mktemp -d)"
  trap 'rm -rf "$site"' EXIT
  echo "Installing ${missing[*]} into $site"
  "$python" -m pip install --quiet --no-deps --no-compile --target "$site" ${source[@]+"${source[@]}"} "${missing[@]}"
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$repository${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
"$python" "$repository/scripts/gpu_check.py" "$@"
