#!/usr/bin/env bash
# Makes an ordinary user for tests, as root: users of clusters are not root, and
# Apptainer builds for those who have a range of user ids, which useradd gives.
set -euo pipefail
name="${1:-rankbench}"
id "$name" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$name"
grep -q "^$name:" /etc/subuid || usermod --add-subuids 200000-265535 \
    --add-subgids 200000-265535 "$name"
id "$name"
