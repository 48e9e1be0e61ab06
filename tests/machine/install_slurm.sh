#!/usr/bin/env bash
# Installs the packages for a pretend cluster (tests/cluster) on Debian; run it as root: Slurm
# with munge, PMIx and accounting, Open MPI to test PMIx, an ssh server and rsync for hosts without
# Slurm. It does not start their services, because each pretend cluster starts its own with
# its own configuration.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

want_debian "install Slurm with PMIx, munge and iproute2 from your system's packages"

# Packages run this program to ask whether to start their service; 101 means no.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends \
    slurmctld slurmd slurm-client munge libpmix2 iproute2 procps util-linux \
    slurmdbd mariadb-server-core mariadb-client-core gcc libc6-dev \
    openmpi-bin libopenmpi-dev openssh-server rsync >/dev/null
if command -v systemctl >/dev/null; then
    systemctl disable --quiet slurmctld slurmd slurmdbd munge ssh || true
fi
slurmd -V
