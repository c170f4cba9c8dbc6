# Sourced by the scripts beside it. Makes the virtual environment that they run in; prints nothing when it is complete.
#
# The environment is complete only with a stamp of what it was built from, written last: a build that was killed
# half-way is built again. A checkout that cannot be written is copied to the user's cache first.

set -euo pipefail

die() { # what, the one command that mends it
    printf 'pfsup: %s\n       mend it with: %s\n' "$1" "$2" >&2
    exit 69
}

find_python() {
    local candidate
    for candidate in ${PFSUP_PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    die "cannot find Python 3.11 or newer" "apt-get install python3 python3-venv   (or: PFSUP_PYTHON=/path/to/python3 $0)"
}

python_of() { # version: a real interpreter of it (a version manager's shim may exist without one)
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

writable_root() { # the checkout, or a fresh copy of it in the user's cache when it is read-only
    if [ -w "$1" ] && { [ ! -e "$1/.venv" ] || [ -w "$1/.venv" ]; }; then
        printf '%s\n' "$1"
        return
    fi
    local cache
    cache="${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}"
    mkdir -p "$cache" 2>/dev/null || cache="${TMPDIR:-/tmp}/pfsup-cache-$(id -u)"
    local copy="$cache/pfsup/checkout"
    mkdir -p -m 700 "$cache" && mkdir -p "$copy" ||
        die "cannot write to $1 nor to $cache" "chown -R \"\$(id -un)\" '$1'"
    [ -O "$copy" ] || die "the copy of the checkout at $copy belongs to somebody else" "XDG_CACHE_HOME=\$(mktemp -d) $0"
    # Everything but what is built: a stale file would be imported, so the copy is made anew around its .venv.
    find "$copy" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    (cd "$1" && tar cf - --exclude=./.venv --exclude=./.git --exclude=__pycache__ .) | (cd "$copy" && tar xf - --no-same-owner)
    chmod -R u+w "$copy"
    printf '%s\n' "$copy"
}

stamp_of() { # python: what the environment is built from
    { cat pyproject.toml constraints.txt; "$1" -c 'import sys; print(sys.version, sys.prefix)'; echo "$ROOT"; } | cksum
}

new_venv() { # python, venv
    rm -rf "$2"
    # Debian without python3-venv exits 1 here and leaves half an environment behind.
    "$1" -m venv "$2" >/dev/null 2>&1 || {
        rm -rf "$2"
        die "cannot make a virtual environment with $1" "apt-get install python3-venv"
    }
    # Type checkers read the package through this link: the checkout's folder need not be called pfsup.
    mkdir -p "$2/link" && ln -sfn "$ROOT" "$2/link/pfsup"
}

install() { # venv, extra
    local uv
    uv=$(command -v uv || true)
    if [ -n "$uv" ]; then
        "$uv" pip install -q --python "$1/bin/python" -c constraints.txt -e ".[$2]" && return
        echo "pfsup: uv could not install; trying pip" >&2
    fi
    "$1/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[$2]" ||
        die "cannot install the packages that pyproject.toml names" "check the network and pip's configuration, then run this again"
}

# use_venv EXTRA...: afterwards $ROOT is the folder to work in, and $VENV/bin holds the programs. PFSUP_VENV names
# another environment than .venv (one for each Python version of a test matrix).
use_venv() {
    local python want extra
    ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
    ROOT=$(writable_root "$ROOT")
    cd "$ROOT"
    python=$(find_python)
    VENV="${PFSUP_VENV:-$ROOT/.venv}"
    want=$(stamp_of "$python")
    exec 9<"$ROOT" # two scripts at once: the second waits for the first's build
    if command -v flock >/dev/null 2>&1; then flock 9; fi
    if [ ! -f "$VENV/stamp" ] || [ "$(head -n 1 "$VENV/stamp")" != "$want" ]; then
        echo "pfsup: building ${VENV##*/} with $python" >&2
        new_venv "$python" "$VENV"
        printf '%s\n' "$want" >"$VENV/stamp.part"
    else
        cp "$VENV/stamp" "$VENV/stamp.part"
    fi
    for extra in "$@"; do
        if ! grep -qxF "extra $extra" "$VENV/stamp.part"; then
            echo "pfsup: installing pfsup[$extra] into ${VENV##*/}" >&2
            install "$VENV" "$extra"
            printf 'extra %s\n' "$extra" >>"$VENV/stamp.part"
        fi
    done
    mv "$VENV/stamp.part" "$VENV/stamp"
    exec 9<&-
}
