# Steps that all definitions share. Their %post sources this file, and calls one after the
# other: install, build_with, environment, wheels, build, promise, clean.

set -euo pipefail

FILES=/opt/rankbench/build # what %files brought; gone in the end
BUILD_PACKAGES=()

# Settings of the builder must not change what is built; a proxy may be needed.
for name in $(compgen -e | grep -vixE '(http|https|no)_proxy'); do
    unset "$name"
done
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1 \
    PIP_FIND_LINKS="$FILES/wheels" PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
# A folder of its own, because the host's /tmp is bound.
TMPDIR="$(mktemp -d)"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

step() {
    echo "== $SECONDS s: $*"
}

# Install only the named packages, without documentation and translations.
cat >/etc/dpkg/dpkg.cfg.d/rankbench <<END
force-unsafe-io
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/man/*
END
cat >/etc/apt/apt.conf.d/rankbench <<END
APT::Install-Recommends "false";
APT::AutoRemove::SuggestsImportant "false";
Acquire::Languages "none";
Acquire::Retries "3";
Binary::apt-get::quiet "2";
END
apt-get update

# Install Debian packages that stay: install PACKAGE...
install() {
    step "installing Debian packages"
    apt-get install -y "$@" >/dev/null
}

# Install Debian packages that only the build needs: build_with PACKAGE...
build_with() {
    step "installing Debian packages to build with"
    BUILD_PACKAGES+=("$@")
    apt-get install -y "$@" >/dev/null
}

# Make the environment of the ranks in /opt/venv: environment [OPTION OF VENV]...
environment() {
    python3 -m venv "$@" /opt/venv
    export PATH="/opt/venv/bin:$PATH"
}

# Install wheels: wheels FILE OF requirements/...
wheels() {
    step "installing the wheels of $*"
    pip install -q --no-deps --require-hashes "${@/#/-r$FILES/requirements/}"
}

# Build DeepSpeed without compiled operators, and Horovod: build OPERATIONS
build() {
    step "building DeepSpeed"
    DS_BUILD_OPS=0 pip install -q --use-pep517 --no-deps --no-build-isolation \
        "$FILES"/wheels/deepspeed-*.tar.gz
    step "building Horovod"
    bash "$FILES/build_horovod.sh" --python /opt/venv/bin/python3 --operations "$1" \
        --sources "$FILES/wheels" --wheels "$TMPDIR/horovod"
}

# Write the promises that the image's own test checks: promise NAME FLAVOUR
promise() {
    cp "$FILES/check_image.py" /opt/rankbench
    python3 - "$FILES/images.yaml" "$@" >/opt/rankbench/image.json <<END
import json, sys, yaml
file, name, flavour = sys.argv[1:]
with open(file) as stream:
    entry = yaml.safe_load(stream)[name]
if flavour not in entry["flavours"]:
    sys.exit(f"{name} has the flavours {', '.join(entry['flavours'])}, not {flavour}")
print(json.dumps({"name": name, "flavour": flavour, **entry}, indent=2))
END
}

# Remove compilers, caches and documentation: clean
clean() {
    step "removing what only the build needed"
    apt-get purge -y --auto-remove "${BUILD_PACKAGES[@]}" >/dev/null
    apt-get clean
    rm -rf "$FILES" /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old \
        /var/log/*.log /var/log/apt/* /usr/share/{info,locale,man}/*
    find /usr/share/doc -depth ! -name copyright ! -type d -delete
    find /usr/share/doc -depth -type d -empty -delete
    step "done"
}
