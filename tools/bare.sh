#!/usr/bin/env bash
# Proves that a bare Debian or Ubuntu is enough: clones the project into a new debootstrap system
# that has python3, python3-venv, git, make and g++ only, and runs `make train`, `make train` again
# and `make test` as an ordinary user with an empty environment. Needs root and debootstrap. The
# times are appended to benchmarks/results/bare.md.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "error: CONFIG: $1; $2" >&2; exit 2; }
((EUID == 0)) || fail "make bare: it needs root, to make a system in a folder" "run it as root"
command -v debootstrap >/dev/null || fail "debootstrap: not found" "apt-get install debootstrap"

system=$(mktemp -d "${TMPDIR:-/tmp}/hvd-train-bare.XXXXXX")
chmod 755 "$system"
home=$system/home/user
mounted=()

clean_up() {
  local at
  for at in "${mounted[@]}"; do umount --lazy "$at"; done
  # A folder that is still a mount of this machine must never be removed.
  if grep -q " $system/" /proc/mounts; then
    echo "left $system: it is still mounted" >&2
  else
    rm -rf "$system"
  fi
}
trap clean_up EXIT

mount_at() { # kind, target
  mkdir -p "$system$2"
  case $1 in
    bind) mount --bind "$2" "$system$2" ;;
    devpts) mount -t devpts -o ptmxmode=666 devpts "$system$2" ;;
    *) mount -t "$1" "$1" "$system$2" ;;
  esac
  mounted=("$system$2" "${mounted[@]}")
}

. /etc/os-release
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | head -n 1)
debootstrap --variant=minbase \
  --include=python3,python3-venv,git,make,g++ \
  "$VERSION_CODENAME" "$system" "$mirror" >"$system.log" 2>&1 ||
  { tail -n 20 "$system.log" >&2; fail "debootstrap: failed" "see $system.log"; }
rm "$system.log"
mount_at proc /proc
mount_at sysfs /sys
mount_at tmpfs /dev/shm
for device in null zero urandom random tty; do
  [[ -e $system/dev/$device ]] || cp -a "/dev/$device" "$system/dev/$device"
done
mount_at devpts /dev/pts
ln -sf pts/ptmx "$system/dev/ptmx"
chroot "$system" useradd --create-home user
# What an installed system has and debootstrap leaves to the installer.
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$(hostname)" >"$system/etc/hosts"

# How this network reaches a package registry is this network's matter: pip's settings and the
# certificates that they name go along, nothing else.
cp --dereference /etc/resolv.conf "$system/etc/resolv.conf"
settings=()
for name in $(compgen -e | grep -E '^(PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL|PROXY)|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|https?_proxy|HTTPS?_PROXY)$' || true); do
  settings+=("$name=${!name}")
  [[ -f ${!name} ]] && install -D -m 644 "${!name}" "$system${!name}"
done
if [[ -f /etc/pip.conf ]]; then
  cp /etc/pip.conf "$system/etc/pip.conf"
fi

git clone -q . "$home/hvd-train"
chroot "$system" chown -R user: /home/user/hvd-train
echo "$PRETTY_NAME with python3, python3-venv, git, make and g++ in $system"

as_user() {
  chroot --userspec=user:user "$system" env -i HOME=/home/user PATH=/usr/bin:/bin \
    "${settings[@]}" sh -c "cd /home/user/hvd-train && $1"
}

results=benchmarks/results/bare.md
mkdir -p benchmarks/results
if [[ ! -f $results ]]; then
  printf '# Both commands on a bare system, by `make bare`\n\n%s\n%s\n' \
    '| date | system | command | seconds | last line |' '| --- | --- | --- | --- | --- |' >"$results"
fi
for command in "make train" "make train" "make test"; do
  start=$SECONDS
  as_user "$command" 2>&1 | tee "$system/tmp/log" || fail "$command: failed" "see the lines above"
  last=$(grep -E 'right after|passed|failed' "$system/tmp/log" | tail -n 1 |
    sed 's/.*: test: //; s/=\{3,\}//g')
  row="| $(date +%F) | $PRETTY_NAME, $(nproc) cores | $command | $((SECONDS - start)) | $last |"
  echo "$row" | tee -a "$results"
done
