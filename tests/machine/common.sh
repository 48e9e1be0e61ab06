# Functions for the scripts in this folder that install Debian packages as root.

export DEBIAN_FRONTEND=noninteractive

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# want_debian ADVICE: fails unless this is root on Debian; the advice is for other systems
want_debian() {
    [ "$(id -u)" -eq 0 ] || fail "run this as root: it installs system packages"
    command -v apt-get >/dev/null || fail "this works on Debian only; elsewhere: $*"
}
