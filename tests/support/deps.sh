#!/bin/sh
# Installs the Debian packages that a group of commands needs and that are missing: deps.sh container|run|test|lint|fuzz|bench|memcheck|package|all.
#
# With nothing missing this is one dpkg-query. Packages come by name from wherever apt is configured to look. A server
# package must not leave a server behind: no PostgreSQL cluster is created and no service started or enabled.
set -eu

# a|b: either will do, the first is installed. The curl variants exclude each other, and any of them serves us.
build='gcc libc6-dev libcrypt-dev make pkg-config libmicrohttpd-dev libpq-dev zlib1g-dev libgnutls28-dev libjansson-dev libyaml-dev
	libnghttp2-dev libprotobuf-c-dev protobuf-c-compiler libcurl4-gnutls-dev|libcurl4-openssl-dev|libcurl4-nss-dev'
container="$build ca-certificates"
run="$build postgresql-15"
package="$build build-essential debhelper dpkg-dev fakeroot"
test="$package $run curl libcmocka-dev prometheus python3 python3-grpcio python3-protobuf python3-yaml mandoc zsh
	slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge lua-socket lua5.1 chromium fonts-dejavu-core poppler-utils"
lint="$test clang clang-format clang-tidy cppcheck"
fuzz="$run clang libclang-rt-14-dev"
bench="$test wrk prometheus-pushgateway"
memcheck="$test valgrind"

case "${1-}" in
container | run | test | lint | fuzz | bench | memcheck | package) eval "wanted=\$$1" ;;
all) wanted="$lint $fuzz $bench $memcheck $package lintian" ;;
*)
	echo "usage: deps.sh container|run|test|lint|fuzz|bench|memcheck|package|all" >&2
	exit 2
	;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	echo "make deps: this is not a Debian-like system, so nothing is installed; what Tollgate needs is, by Debian's names:" $wanted >&2
	# Building may still work where the same things are installed under other names.
	exit 0
fi

installed=" $(dpkg-query -W -f '${Package}=${db:Status-Status} ' $(echo "$wanted" | tr '|' ' ') 2>/dev/null || true)"
missing=
for entry in $wanted; do
	found=
	for package in $(echo "$entry" | tr '|' ' '); do
		case "$installed" in *" $package=installed "*) found=1 ;; esac
	done
	first=${entry%%|*}
	case " $missing " in *" $first "*) found=1 ;; esac
	[ -n "$found" ] || missing="$missing $first"
done
missing=${missing# }
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
	if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
		as_root=sudo
	else
		echo "make deps: these packages are missing, and installing them needs root: $missing" >&2
		echo "Run as root: apt-get install --no-install-recommends $missing" >&2
		exit 1
	fi
fi

echo "make deps: installing $missing"
exec $as_root sh -s -- $missing <<'AS_ROOT'
set -eu
export DEBIAN_FRONTEND=noninteractive

# Both files say "no" to starting anything during this installation, and go away with it. An administrator's own
# policy stays as it is.
policy=/usr/sbin/policy-rc.d
cluster=/etc/postgresql-common/createcluster.d/tollgate-deps.conf
made_policy=
[ -e $policy ] || made_policy=1
made_dirs=
for dir in /etc/postgresql-common /etc/postgresql-common/createcluster.d; do
	[ -d $dir ] || made_dirs="$dir $made_dirs"
done
cleanup() {
	rm -f $cluster
	[ -z "$made_policy" ] || rm -f $policy
	for dir in $made_dirs; do rmdir $dir 2>/dev/null || true; done
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "${cluster%/*}"
echo 'create_main_cluster = false' >$cluster
if [ -n "$made_policy" ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod 755 $policy
fi

apt() {
	apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null
}
install() {
	apt install --yes --no-install-recommends "$@"
}
if ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 && apt install --simulate "$@" >/dev/null 2>&1; then
	install "$@" || { apt update && install "$@"; }
else
	apt update
	install "$@"
fi

# policy-rc.d keeps a service from starting now; this keeps it from starting at the next boot. PostgreSQL has no
# cluster to start.
for service in prometheus prometheus-pushgateway munge slurmctld slurmd; do
	case " $* " in
	*" $service "*)
		update-rc.d $service disable || true
		[ ! -d /run/systemd/system ] || systemctl stop $service.service || true
		;;
	esac
done
AS_ROOT
