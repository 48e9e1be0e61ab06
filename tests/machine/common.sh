# Read by the scripts beside: they install packages of Debian, as root.

export DEBIAN_FRONTEND=noninteractive

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# want_debian ELSEWHERE: what to do on another system
want_debian() {
    [ "$(id -u)" -eq 0 ] || fail "as root: it installs packages of the system"
    command -v apt-get >/dev/null || fail "this is for Debian; elsewhere: $*"
}
