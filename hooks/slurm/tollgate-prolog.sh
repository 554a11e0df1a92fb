#!/bin/sh
# Slurm prolog of a node, run by slurmd as root: writes down which GPUs the job has, for tollgate-exporter.
#
# The file appears whole or not at all, and only root can write it: who may write it decides who pays. Whatever goes wrong is
# said on stderr (slurmd's log) and does not fail the prolog, because that would drain the node.

dir=${TOLLGATE_SLURM_DIR:-/run/tollgate-slurm}
# Lines "<Slurm's index> <UUID>", where Slurm counts GPUs otherwise than nvidia-smi does, and for MIG instances.
map=${TOLLGATE_SLURM_GPUS:-/etc/tollgate/slurm-gpus}

complain() {
	echo "tollgate-prolog: job ${SLURM_JOB_ID-}: $1; its GPUs are not allocated to it in the ledger" >&2
	exit 0
}

# One line of text, whatever it was.
clean() {
	printf '%s' "$1" | tr -d '\000-\037\177'
}

# 0,1,8 by the map; what is not in it stays as it is
uuids() {
	if [ -r "$map" ]; then
		printf '%s' "$1" | awk -v map="$map" '
			BEGIN { while ((getline <map) > 0) if (NF >= 2) uuid[$1] = $2; RS = "," }
			{ sub(/\n$/, ""); printf "%s%s", (NR > 1 ? "," : ""), ($0 in uuid ? uuid[$0] : $0) }'
	else
		printf '%s' "$1"
	fi
}

case "${SLURM_JOB_ID-}" in
'' | *[!0-9]*) complain "SLURM_JOB_ID is not a number" ;;
esac

umask 022
[ -d "$dir" ] || mkdir -p "$dir" || complain "$dir cannot be made"
new=$dir/.$SLURM_JOB_ID.$$
{
	echo "job=$SLURM_JOB_ID"
	# the name of the job's cgroup from Slurm 26.05 on; earlier Slurms do not have it
	[ -z "${SLURM_JOB_SLUID-}" ] || echo "sluid=$(clean "$SLURM_JOB_SLUID")"
	echo "account=$(clean "${SLURM_JOB_ACCOUNT-}")"
	echo "user=$(clean "${SLURM_JOB_USER-}")"
	echo "uid=$(clean "${SLURM_JOB_UID-}")"
	echo "partition=$(clean "${SLURM_JOB_PARTITION-}")"
	echo "gpus=$(uuids "$(clean "${SLURM_JOB_GPUS-}")")"
	echo "start=$(date +%s.%N)"
} >"$new" && mv -f "$new" "$dir/$SLURM_JOB_ID" || {
	rm -f "$new"
	complain "$dir/$SLURM_JOB_ID cannot be written"
}
exit 0
