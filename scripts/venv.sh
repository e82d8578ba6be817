# Sourced by the other scripts: go to the repository, make .venv if there is none, and put it first on PATH.
# The build of ALFWorld's planner calls plain `python`, which only an activated environment is sure to have.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
base_python="$(command -v "${PYTHON:-python3}")" || { echo "python3 is not on PATH; set PYTHON" >&2 && exit 1; }
export VIRTUAL_ENV="$PWD/.venv"
export PATH="$VIRTUAL_ENV/bin:$PATH"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
unset PYTHONHOME

# install_once NAME REQUIREMENT...: pip-install once; again when pyproject.toml has changed or the repository has moved.
install_once() {
  local stamp="$VIRTUAL_ENV/.installed-$1" state
  state="$PWD $(cksum <pyproject.toml)"
  shift
  if [[ -x "$VIRTUAL_ENV/bin/python" && -f "$stamp" && "$(<"$stamp")" == "$state" ]]; then
    return
  fi
  if ! python -m pip --version 2>/dev/null | grep -qF "$VIRTUAL_ENV"; then
    if ! "$base_python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
      echo "Python 3.10 or newer is needed; name one, e.g. PYTHON=python3.12 $0" >&2
      return 1
    fi
    echo "Making .venv with $("$base_python" --version)"
    "$base_python" -m venv --clear "$VIRTUAL_ENV" || return
    hash -r
  fi
  echo "Installing $* into .venv (this may take minutes)"
  python -m pip install -qq --disable-pip-version-check 'pip>=21.3' || return
  python -m pip install -qq --disable-pip-version-check "$@" || return
  echo "$state" >"$stamp"
}
