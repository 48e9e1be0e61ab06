#!/usr/bin/env bash
# Builds Horovod for one Python and its torch, and installs it there.
#
# The last release of Horovod is older than today's torch and compilers. So this script
# raises the C++ standard and corrects two small things that new compilers refuse.
# It takes the paths of libraries from the environment variables that Horovod documents
# (HOROVOD_NCCL_HOME, CUDA_HOME, CCL_ROOT, ...).
set -euo pipefail

RELEASE=0.28.1
SOURCE_SHA256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0

usage() {
    cat <<END
usage: build_horovod.sh [option VALUE]...
  --python      the Python with torch to build for (.venv/bin/python)
  --wheels      folder that built wheels are kept in (build/horovod)
  --sources     folder with horovod-$RELEASE.tar.gz (default: pip fetches it)
  --operations  what carries the bytes: of mpi,gloo,nccl,ccl those that are wanted
                (mpi,gloo; without MPI's headers gloo)
  --std         standard of C++ (17 for torch before 2.9, else 20)
  --install     no: only build the wheel, and print its path (yes)
END
}

fail() {
    echo "build_horovod.sh: $*" >&2
    exit 1
}

python=.venv/bin/python wheels=build/horovod sources='' operations='' std='' install=yes
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit ;;
        --python | --wheels | --sources | --operations | --std | --install) ;;
        *) usage >&2; fail "unknown argument $1" ;;
    esac
    [ $# -ge 2 ] || fail "$1 needs a value"
    printf -v "${1#--}" '%s' "$2"
    shift 2
done

torch="$("$python" -c 'import torch; print(torch.__version__)')" ||
    fail "$python has no torch: make venv"
if [ -z "$std" ]; then
    std="$("$python" -c "print(17 if ($(sed -E 's/^([0-9]+)\.([0-9]+).*/\1, \2/' \
        <<<"$torch")) < (2, 9) else 20)")"
fi
if [ -z "$operations" ]; then
    operations=mpi,gloo
    command -v mpicxx >/dev/null || {
        echo "no mpicxx: Horovod is built with gloo only" \
            "(for MPI: apt-get install libopenmpi-dev openmpi-bin, then again)" >&2
        operations=gloo
    }
fi
wanted() { [[ ",$operations," == *",$1,"* ]]; }

options=(
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    "HOROVOD_$(wanted mpi && echo WITH || echo WITHOUT)_MPI=1"
    "HOROVOD_$(wanted gloo && echo WITH || echo WITHOUT)_GLOO=1"
)
if wanted nccl; then options+=(HOROVOD_GPU_OPERATIONS=NCCL); fi
if wanted ccl; then options+=(HOROVOD_CPU_OPERATIONS=CCL); fi
unknown="$(tr , '\n' <<<"$operations" | grep -vxE 'mpi|gloo|nccl|ccl' || true)"
[ -z "$unknown" ] || fail "unknown operations: $unknown (there are mpi,gloo,nccl,ccl)"

# The name of the folder that keeps the build contains everything that may change it.
given="$(env | grep -E '^(HOROVOD_|CUDA|CCL_|CPATH=|C(XX)?FLAGS=)' | sort || true)"
key="$({
    echo "$torch $std $operations $given"
    "$python" -c 'import sys, torch; print(sys.version, torch.__config__.show())'
    if wanted mpi; then mpicxx --version && mpicxx -show; fi
    cat "${BASH_SOURCE[0]}"
} | sha256sum | cut -c 1-12)"
kept="$wheels/torch-$torch-$operations-$key"

if ! compgen -G "$kept/*.whl" >/dev/null; then
    command -v "${CXX:-g++}" >/dev/null ||
        fail "no C++ compiler (${CXX:-g++}): apt-get install g++ make"
    command -v make >/dev/null || fail "no make: apt-get install make"
    if wanted mpi && ! command -v mpicxx >/dev/null; then
        fail "no MPI headers (mpicxx): apt-get install libopenmpi-dev openmpi-bin"
    fi
    headers="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    [ -e "$headers/Python.h" ] ||
        fail "no $headers/Python.h: apt-get install python3-dev, or another Python"
    bin="$(dirname "$(realpath --no-symlinks "$python")")"
    export PATH="$bin:$PATH"
    command -v cmake >/dev/null || fail "no cmake: make extras brings one"

    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    if [ -z "$sources" ]; then
        echo "horovod==$RELEASE --hash=sha256:$SOURCE_SHA256" >"$work/source.txt"
        # pip uses only the metadata of the source.
        "$python" -m pip download -q --no-deps --no-build-isolation --no-binary horovod \
            --require-hashes -r "$work/source.txt" --dest "$work"
        sources="$work"
    fi
    archive="$sources/horovod-$RELEASE.tar.gz"
    echo "$SOURCE_SHA256  $archive" | sha256sum --check --quiet ||
        fail "$archive is not the release"
    tar -xzf "$archive" -C "$work"
    tree="$work/horovod-$RELEASE"
    sed -i "s/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD $std)/" \
        "$tree/CMakeLists.txt" "$tree/horovod/torch/CMakeLists.txt"
    # Remove the symbols that only a debugger needs.
    sed -i 's/RelWithDebInfo/Release/' "$tree/setup.py"
    sed -i 's/  const size_type count_;/  size_type count_;/' \
        "$tree/third_party/flatbuffers/include/flatbuffers/stl_emulation.h"

    echo "building Horovod $RELEASE ($operations) for torch $torch: about 2 minutes"
    compile() {
        rm -rf "$tree/build"
        env "${options[@]}" \
            CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}" \
            CXXFLAGS="-include stdexcept -include cstdint ${CXXFLAGS:-}" \
            "$python" -m pip wheel -q --no-deps --no-index --no-build-isolation \
            --no-cache-dir --wheel-dir "$work/wheel" "$tree" >"$work/log" 2>&1
    }
    # Horovod's many small files include the same large headers, so compiling eight of
    # them together takes two thirds of the time. This works for the files of MPI and Gloo;
    # if it fails for others, each is compiled alone.
    sed -i '1i set(CMAKE_UNITY_BUILD ON)' "$tree/horovod/torch/CMakeLists.txt"
    compile || {
        echo "its files cannot be compiled together: again, one by one" >&2
        sed -i 1d "$tree/horovod/torch/CMakeLists.txt"
        compile
    } || {
        tail -n 60 "$work/log" >&2
        fail "the build failed; its last lines are above"
    }
    mkdir -p "$kept"
    cp "$work/wheel"/*.whl "$kept"
fi

wheel="$(compgen -G "$kept/*.whl")"
if [ "$install" = yes ]; then
    "$python" -m pip install -q --no-deps --no-index --force-reinstall "$wheel"
    "$python" -c 'import horovod.torch'
else
    echo "$wheel"
fi
