#!/bin/sh
# rootfs.sh PROGRAM DIR: fills DIR with the program, the libraries it is linked with, and what they read of a Debian system.
set -eu
program=$1
root=$2

mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/etc/tollgate" "$root/tmp" "$root/var/lib/tollgate" "$root/usr/lib" "$root/usr/lib64"
chmod 1777 "$root/tmp"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
install -m 755 "$program" "$root/usr/bin/"

# by the names the loader looks for, wherever a link may lead
ldd "$program" | sed -n 's|.*=> \(/[^ ]*\) (.*|\1|p; s|^[[:space:]]*\(/[^ ]*\) (.*|\1|p' | while read -r library; do
	case $library in
	/lib/* | /lib64/*) to=$root/usr$library ;;
	*) to=$root$library ;;
	esac
	mkdir -p "${to%/*}"
	cp -L "$library" "$to"
done

# NVIDIA's runtime puts the driver's libraries where a Debian looks for them, if it takes this for one
cp /etc/debian_version "$root/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
printf 'root:x:0:0:root:/:/usr/sbin/nologin\ntollgate:x:65532:65532:Tollgate:/var/lib/tollgate:/usr/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\ntollgate:x:65532:\n' >"$root/etc/group"
# unprivileged, for a look at what would be in it
[ "$(id -u)" -ne 0 ] || chown 65532:65532 "$root/var/lib/tollgate"
