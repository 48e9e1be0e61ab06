#!/usr/bin/env bash
# Installs Apptainer on Debian; run it as root. It is for tests, and for trying images on
# your own machine. On a cluster, the operators install Apptainer.
#
# Debian has Apptainer in `sid` only, built against a newer C library than that of a stable
# release. So this script unpacks Apptainer's files into the system, together with a newer
# C library in a folder of its own. Only Apptainer uses that library; the system's C
# library does not change.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PREFIX=/opt/apptainer/glibc

want_debian "apptainer.org/docs/admin/main/installation.html"

# Ordinary users need FUSE to mount images, and uidmap to build them.
apt-get update -qq
apt-get install -qq -y --no-install-recommends \
    squashfs-tools squashfuse fuse-overlayfs fuse3 uidmap debootstrap patchelf \
    libseccomp2 libsqlite3-0 ca-certificates containernetworking-plugins >/dev/null
[ ! -e /dev/fuse ] || chmod 666 /dev/fuse

if ! command -v apptainer >/dev/null; then
    if apt-cache show apptainer >/dev/null 2>&1; then
        apt-get install -qq -y --no-install-recommends apptainer >/dev/null
    else
        work="$(mktemp -d)"
        trap 'rm -rf "$work"' EXIT
        # Use the mirror that apt of this machine uses.
        mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
            grep -m 1 '/debian/*$')" || fail "apt knows no Debian mirror"
        mkdir -p "$work"/{parts,lists/partial,cache/archives/partial}
        cat >"$work/parts/debian.sources" <<END
Types: deb
URIs: $mirror
Suites: sid trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
        chmod -R a+rX "$work"
        apart=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts"
            -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -qq)
        apt-get "${apart[@]}" update
        cd "$work"
        apt-get "${apart[@]}" -o APT::Sandbox::User=root download \
            apptainer/sid libc6/trixie
        dpkg -x apptainer_*.deb /
        dpkg -x libc6_*.deb "$work/libc"
        mkdir -p "$PREFIX"
        found="$(find "$work/libc" -name 'ld-linux-x86-64.so.2' -type f | head -n 1)"
        [ -n "$found" ] || fail "the C library has no loader for this processor"
        cp -a "$(dirname "$found")/." "$PREFIX"
        # RPATH instead of RUNPATH, because Apptainer sets LD_LIBRARY_PATH for its helpers,
        # which overrides RUNPATH.
        for program in /usr/bin/apptainer $(find /usr/lib* -path '*apptainer*' \
            -name 'starter*' -type f); do
            patchelf --set-interpreter "$PREFIX/ld-linux-x86-64.so.2" --force-rpath \
                --set-rpath "$PREFIX:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu" \
                "$program"
        done
    fi
fi
# If this machine is a container, its root may lack capabilities that Apptainer would pass
# on to containers.
configuration=/etc/apptainer/apptainer.conf
sed -i 's/^root default capabilities = .*/root default capabilities = no/' \
    "$configuration"
apptainer --version
