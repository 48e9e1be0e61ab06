#!/usr/bin/env bash
# Installs on Debian, as root, the browser that looks at the site in tests: Chromium, the
# driver of the same version, the sandbox for an ordinary user, and one family of fonts.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

want_debian "install Chromium or Chrome, and the chromedriver of its version"

apt-get update -qq
apt-get install -qq -y --no-install-recommends \
    chromium chromium-driver chromium-sandbox fonts-dejavu-core >/dev/null
chromedriver --version
