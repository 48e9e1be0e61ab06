#!/usr/bin/env bash
# Runs `make test` and `make quickstart` as a new user would: in a fresh clone of the last
# commit, with a new environment and an empty home. PATH has only Python, make, git and
# basic programs. Other installed programs are hidden: MPI, Apptainer, Slurm, browser,
# compiler. As root, `bare.sh USER` runs it as this user.
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
user="${1:-}"

PROGRAMS=(
    awk basename bash cat chmod cp cut date dd df dirname env expr false find getent git
    grep gzip head hostname id kill ln ls make mkdir mktemp mv nice nproc ps pwd readlink
    realpath rm rmdir sed seq setsid sh sleep sort stat stty tail tar tee test timeout
    touch tr true uname uniq wc which whoami xargs
)

folder="$(mktemp -d "${TMPDIR:-/tmp}/rankbench-bare-XXXXXX")"
trap 'rm -rf "$folder"' EXIT
mkdir "$folder"/{bin,home}
for name in "${PROGRAMS[@]}"; do
    # Some systems lack some of these programs.
    path="$(type -P "$name")" || continue
    ln -s "$path" "$folder/bin/$name"
done
# Link the interpreter itself: the shim of a version manager would not find its versions.
python="$("${PYTHON:-python3}" -c 'import sys; print(sys.executable)')"
ln -s "$python" "$folder/bin/python3"

# safe.directory, because the checkout may belong to another user, as in a container.
git clone --quiet --upload-pack "git -c safe.directory='*' upload-pack" \
    "$checkout" "$folder/rankbench"

# Package sources depend on this machine, so keep the variables and the pip configuration
# of the caller.
variables=()
while IFS= read -r -d '' variable; do
    case "${variable%%=*}" in
    PIP_CONFIG_FILE) ;;
    PIP_* | [Hh][Tt][Tt][Pp]*_[Pp][Rr][Oo][Xx][Yy] | [Nn][Oo]_[Pp][Rr][Oo][Xx][Yy]) \
        variables+=("$variable") ;;
    SSL_CERT_* | REQUESTS_CA_BUNDLE | LANG | LC_ALL) variables+=("$variable") ;;
    LD_LIBRARY_PATH) variables+=("$variable") ;; # some builds of Python need it
    esac
done < <(env -0)
for file in "${PIP_CONFIG_FILE:-}" "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf" \
    "$HOME/.pip/pip.conf"; do
    [ -f "$file" ] || continue
    cp "$file" "$folder/pip.conf"
    variables+=("PIP_CONFIG_FILE=$folder/pip.conf")
    break
done

chmod -R a+rX "$folder"
run_as=()
if [ -n "$user" ]; then
    chown -R "$user:" "$folder"
    run_as=(runuser -u "$user" --)
fi
cd "$folder/rankbench"
"${run_as[@]}" env -i "${variables[@]}" PATH="$folder/bin" HOME="$folder/home" \
    bash -euc '
        for name in mpirun mpicxx apptainer slurmd srun chromedriver gcc g++ cc c++; do
            ! command -v "$name" || { echo "bare.sh: $name is on PATH" >&2; exit 1; }
        done
        begun=$SECONDS
        make venv
        echo "bare: installed in $((SECONDS - begun)) s"
        begun=$SECONDS
        make test
        echo "bare: make test took $((SECONDS - begun)) s"
        begun=$SECONDS
        # One launch of each cell shows that the first command of README runs.
        sed -i "s/^launches: .*/launches: 1/" config.yaml
        make quickstart
        [ "$(grep -c ",ok," results/quickstart/table.csv)" -eq 5 ]
        echo "bare: make quickstart took $((SECONDS - begun)) s"
    '
