#!/usr/bin/env bash
# Installs the browser for tests of the site on Debian; run it as root. It installs
# Chromium, its driver, the sandbox for ordinary users, and one font family.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

want_debian "install Chromium or Chrome, and a chromedriver of the same version"

apt-get update -qq
apt-get install -qq -y --no-install-recommends \
    chromium chromium-driver chromium-sandbox fonts-dejavu-core >/dev/null
chromedriver --version
