#!/bin/sh
# Installs the Debian packages that the tests talk to. Called by `make test`.
#
# Only as root, only where apt-get is, and without starting or enabling any service: a
# policy-rc.d that says no stands there meanwhile, and what stood there before comes back.
# Elsewhere it says what is missing; the tests that need it are then skipped with that reason.
set -u

missing=
command -v mosquitto >/dev/null || [ -x /usr/sbin/mosquitto ] || missing="$missing mosquitto"
command -v mosquitto_pub >/dev/null || missing="$missing mosquitto-clients"
command -v chromium >/dev/null || missing="$missing chromium"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
command -v ip >/dev/null || missing="$missing iproute2"
command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || missing="$missing haproxy"
command -v nats-server >/dev/null || [ -x /usr/sbin/nats-server ] || missing="$missing nats-server"
command -v promtool >/dev/null || missing="$missing prometheus"
command -v zsh >/dev/null || missing="$missing zsh"
command -v valgrind >/dev/null || missing="$missing valgrind"
[ -d /usr/lib/postgresql ] || missing="$missing postgresql"
[ -e /usr/share/java/postgresql.jar ] || missing="$missing libpostgresql-jdbc-java"
[ -n "$missing" ] || exit 0

skip() {
    echo "Skipped: the tests that need$missing ($1)."
    exit 0
}
command -v apt-get >/dev/null || skip "no apt-get here"
[ "$(id -u)" = 0 ] || skip "not root; apt install$missing"

policy=/usr/sbin/policy-rc.d
aside=$(mktemp -d)
restore() {
    rm -f "$policy"
    [ ! -e "$aside/policy-rc.d" ] || mv "$aside/policy-rc.d" "$policy"
    rmdir "$aside"
}
[ ! -e "$policy" ] || mv "$policy" "$aside/"
trap restore EXIT
trap 'exit 1' INT TERM HUP
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod +x "$policy"

echo "Installing$missing (no service is started)"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # one word a package
{ apt-get -qq update && apt-get -qq -y install --no-install-recommends $missing; } >/dev/null ||
    skip "apt-get failed"
# The packages enable their services for the next boot; nobody asked for that.
if [ -d /run/systemd/system ]; then
    systemctl -q disable mosquitto.service nats-server.service prometheus.service \
        postgresql.service 2>/dev/null
fi
exit 0
