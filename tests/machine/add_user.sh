#!/usr/bin/env bash
# Creates an ordinary user for tests; run it as root. Tests need one, because users of
# clusters are not root. useradd also gives the user a range of user ids, which Apptainer
# needs to build images.
set -euo pipefail
name="${1:-rankbench}"
python="${2:-.venv/bin/python}"
id "$name" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$name"
# sshd lets no user in whose password is locked; with "*" there is none to enter.
case "$(getent shadow "$name" | cut -d : -f 2)" in '!'*) usermod --password '*' "$name" ;; esac
grep -q "^$name:" /etc/subuid || usermod --add-subuids 200000-265535 \
    --add-subgids 200000-265535 "$name"
# The project and its Python may be below the home of root. Let this user, and no other,
# pass through the folders above them.
for path in "$(realpath --no-symlinks "$python")" "$(realpath "$python")"; do
    IFS=/ read -ra parts <<<"$(dirname "$path")"
    folder=
    for part in "${parts[@]:1}"; do
        folder="$folder/$part"
        runuser -u "$name" -- test -x "$folder" || {
            command -v setfacl >/dev/null ||
                { apt-get update -qq && apt-get install -qq -y \
                    --no-install-recommends acl >/dev/null; }
            setfacl --modify "user:$name:--x" "$folder"
        }
    done
done
id "$name"
