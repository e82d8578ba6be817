#!/usr/bin/env bash
# Lint, type-check and test in .venv, two files of tests side by side. Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

install_once tests --editable '.[dev,gguf,hotpotqa,lora,report,scienceworld]'
# The reference simulator compiles C++ (a compiler and make are needed; minutes). Without it its tests are skipped.
if ! install_once reference --editable '.[alfworld]'; then
  if [[ -n "${CI:-}" ]]; then
    exit 1
  fi
  echo "The alfworld extra could not be installed: tests that compare with TextWorld will be skipped." >&2
fi

ruff check .
ruff format --check .
mypy
pytest --numprocesses 2 --dist loadfile "$@"
