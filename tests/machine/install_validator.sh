#!/usr/bin/env bash
# Installs the validator of RO-Crates into build/validator. It is an environment of its own: the validator wants older packages
# than Snakemake.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

"${PYTHON:-python3}" -m venv build/validator
build/validator/bin/pip install -q --disable-pip-version-check \
    roc-validator==0.13.0 rdflib==7.6.0 pyshacl==0.40.1
build/validator/bin/rocrate-validator --version
