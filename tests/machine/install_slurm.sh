#!/usr/bin/env bash
# Installs on Debian, as root, what a pretend cluster is made of (tests/cluster): Slurm
# with munge and PMIx, and Open MPI to try PMIx with. The packages' own services are not
# started: each pretend cluster starts its own, from its own configuration.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

want_debian "install Slurm with PMIx, munge and iproute2 from your system's packages"

# The answer to a package that asks whether to start its service: 101 is no.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends \
    slurmctld slurmd slurm-client munge libpmix2 iproute2 procps util-linux \
    gcc libc6-dev openmpi-bin libopenmpi-dev >/dev/null
if command -v systemctl >/dev/null; then
    systemctl disable --quiet slurmctld slurmd munge || true
fi
slurmd -V
