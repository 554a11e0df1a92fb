#!/bin/sh
# Slurm epilog of a node, run by slurmd as root when the job's processes are gone: its GPUs are free again.

dir=${TOLLGATE_SLURM_DIR:-/run/tollgate-slurm}

case "${SLURM_JOB_ID-}" in
'' | *[!0-9]*)
	echo "tollgate-epilog: SLURM_JOB_ID is not a number" >&2
	exit 0
	;;
esac
rm -f "$dir/$SLURM_JOB_ID" || echo "tollgate-epilog: $dir/$SLURM_JOB_ID cannot be removed: the job goes on holding its GPUs" >&2
exit 0
