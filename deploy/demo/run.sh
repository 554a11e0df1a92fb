#!/usr/bin/env bash
# deploy/demo/run.sh - what `make run` starts: a private PostgreSQL, the aggregator, and exporters on simulated GPUs, or on
# this host's own where it has an NVIDIA driver. Everything it writes is in one state directory, everything it starts it stops.
#
#   RUN_SECONDS=n            end by itself after n seconds
#   TOLLGATE_STATE=dir       the state directory
#   TOLLGATE_PORT=9402       the aggregator's port
#   TOLLGATE_EXPORTER_PORT=  the first exporter's port (9411; a real node's 9401)
#   TOLLGATE_GPUS=auto|sim|real
set -u -o pipefail
umask 022

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=${TOLLGATE_BUILD_DIR:-$root/build/release}
pgbin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
me=$(id -un)
db_user=$me
[ "$(id -u)" -ne 0 ] || db_user=postgres

if [ "$(id -u)" -eq 0 ]; then
	default_state=/var/lib/tollgate-run # root's home is closed to the database's user
else
	default_state=${XDG_STATE_HOME:-$HOME/.local/state}/tollgate
fi
state=${TOLLGATE_STATE:-$default_state}
port=${TOLLGATE_PORT:-9402}
run_seconds=${RUN_SECONDS:-}
url=http://127.0.0.1:$port
log=$state/log

die() {
	printf 'make run: %s\n' "$*" >&2
	exit 1
}
say() { printf '%s\n' "$*"; }
number() { [[ $1 =~ ^[0-9]+$ ]]; }

# ---- which GPUs -----------------------------------------------------------------------------------------------------

have_driver() { [ -e /proc/driver/nvidia/version ] && ldconfig -p 2>/dev/null | grep -q 'libnvidia-ml\.so\.1'; }
case ${TOLLGATE_GPUS:-auto} in
auto) if have_driver; then gpus=real; else gpus=sim; fi ;;
sim | real) gpus=$TOLLGATE_GPUS ;;
*) die "TOLLGATE_GPUS is \"$TOLLGATE_GPUS\"; it may be auto, sim or real" ;;
esac
if [ "$gpus" = real ]; then
	database=tollgate
	nodes=("$(hostname)")
	exporter_port=${TOLLGATE_EXPORTER_PORT:-9401}
	tenants=(local)
	ledger_flag=--no-demo
else
	database=tollgate_demo
	nodes=(demo-h100 demo-mig demo-shared)
	exporter_port=${TOLLGATE_EXPORTER_PORT:-9411}
	tenants=(acme globex)
	ledger_flag=--demo
fi

# ---- before anything is started -------------------------------------------------------------------------------------

check() {
	local i p
	[ -z "$run_seconds" ] || number "$run_seconds" || die "RUN_SECONDS is \"$run_seconds\"; it must be a whole number of seconds"
	number "$port" && number "$exporter_port" || die "ports must be numbers: TOLLGATE_PORT=$port TOLLGATE_EXPORTER_PORT=$exporter_port"
	[ -n "$pgbin" ] || die "PostgreSQL is not installed; run: make deps"
	case $state in /*) ;; *) die "TOLLGATE_STATE is \"$state\"; it must be an absolute path" ;; esac
	mkdir -p "$state" "$log" 2>/dev/null || die "the state directory $state cannot be made; set TOLLGATE_STATE to one that can"
	[ -w "$state" ] || die "the state directory $state is not writable for $me; set TOLLGATE_STATE to one that is"
	exec 9>"$state/lock" || die "$state/lock cannot be written"
	flock -w 2 9 || die "another run uses $state (process $(cat "$state/run.pid" 2>/dev/null)); stop it, or set TOLLGATE_STATE to another directory"
	locked=1
	echo $$ >"$state/run.pid"
	local free_mib socket=$state/pg/sock/.s.PGSQL.5432
	[ "${#socket}" -le 107 ] || die "the path $state is too long for a unix socket by $((${#socket} - 107)) characters; set TOLLGATE_STATE to a shorter one"
	free_mib=$(df -Pm "$state" | awk 'NR==2 {print $4}')
	[ "$free_mib" -ge 300 ] || die "the disk of $state has $free_mib MiB free; 300 MiB are needed"
	for ((i = -1; i < ${#nodes[@]}; i++)); do
		p=$((i < 0 ? port : exporter_port + i))
		if (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null; then
			die "port $p on 127.0.0.1 is taken by another program; stop it, or set TOLLGATE_PORT / TOLLGATE_EXPORTER_PORT"
		fi
	done
}

# ---- children -------------------------------------------------------------------------------------------------------
# Each runs in its own session, so that Ctrl-C reaches only this script, which stops them in order; and each is told by the
# kernel when this script is gone, so that a kill -9 leaves nothing behind.

declare -A pid_of
spawn() { # name signal command...
	local name=$1 signal=$2
	shift 2
	setsid setpriv --pdeathsig "$signal" "$@" >>"$log/$name.log" 2>&1 9>&- &
	pid_of[$name]=$!
}
alive() { [ -n "${pid_of[$1]:-}" ] && kill -0 "${pid_of[$1]}" 2>/dev/null; }
halt() { # name signal seconds: stop and wait; what does not end is killed
	local name=$1 i
	alive "$name" || return 0
	kill -"$2" "${pid_of[$name]}" 2>/dev/null
	for ((i = 0; i < $3 * 10; i++)); do
		alive "$name" || break
		sleep 0.1
	done
	if alive "$name"; then
		say "$name did not end within $3 s and was killed; see $log/$name.log"
		kill -9 "${pid_of[$name]}" 2>/dev/null
	fi
	wait "${pid_of[$name]}" 2>/dev/null
	unset "pid_of[$name]"
}
last_words() { tail -n 3 "$log/$1.log" 2>/dev/null | sed 's/^/    /' >&2; }

as_db_user() {
	if [ "$db_user" = "$me" ]; then "$@"; else
		setpriv --reuid="$db_user" --regid="$db_user" --clear-groups env HOME="$state" "$@"
	fi
}

start_postgres() {
	local as=()
	[ "$db_user" = "$me" ] || as=(--reuid="$db_user" --regid="$db_user" --clear-groups)
	spawn postgres INT "${as[@]}" "$pgbin/postgres" -D "$state/pg/data" -k "$state/pg/sock" -c listen_addresses= -p 5432 \
		-c fsync=on -c max_connections=50 -c log_min_messages=warning
}
create_postgres() {
	[ -f "$state/pg/data/PG_VERSION" ] && return 0
	say "creating a private PostgreSQL cluster in $state/pg ..."
	rm -rf "$state/pg"
	mkdir -p "$state/pg/sock" || die "the disk of $state cannot be written"
	if [ "$db_user" != "$me" ]; then
		id "$db_user" >/dev/null 2>&1 || die "there is no system user $db_user to run PostgreSQL; run: make deps"
		chown -R "$db_user:" "$state/pg"
	fi
	chmod 700 "$state/pg"
	as_db_user test -w "$state/pg" || die "the user $db_user cannot reach $state/pg; set TOLLGATE_STATE to a directory it can"
	as_db_user env LC_ALL=C "$pgbin/initdb" -D "$state/pg/new" -U tollgate -A trust -E UTF8 --locale=C.UTF-8 --data-checksums \
		>"$log/initdb.log" 2>&1 || { last_words initdb; die "PostgreSQL's initdb failed; see $log/initdb.log"; }
	mv "$state/pg/new" "$state/pg/data" # complete or not there at all
}
psql_quiet() { "$pgbin/psql" -X -q -A -t -h "$state/pg/sock" -p 5432 -U tollgate "$@"; }
wait_postgres() {
	local i
	for ((i = 0; i < 300; i++)); do
		"$pgbin/pg_isready" -q -h "$state/pg/sock" -p 5432 && return 0
		alive postgres || start_again postgres || return 1
		sleep 0.1
	done
	return 1
}
start_again() { # a postmaster killed before may leave its children for a moment
	sleep 0.5
	[ "$((++pg_tries))" -le 10 ] && start_postgres
}
pg_tries=0

# Three logins, as in production: tollgate is the private server's superuser and migrates, as the role tollgate_owner; the aggregator has the other two.
conninfo() { printf 'host=%s port=5432 user=%s dbname=%s' "$state/pg/sock" "$1" "$database"; }
start_aggregator() {
	spawn aggregator TERM env TOLLGATE_DATABASE="$(conninfo tollgate_daemon)" TOLLGATE_ROLLUP_DATABASE="$(conninfo tollgate_rollup)" \
		"$bin/tollgate-aggregator" --listen "127.0.0.1:$port" $ledger_flag
}
fetch() { # path: the answer of the aggregator, over bash's own sockets
	exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
	printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$1" >&3
	head -n 1 <&3
	exec 3>&-
}
wait_aggregator() {
	local i
	for ((i = 0; i < 300; i++)); do
		fetch /readyz 2>/dev/null | grep -q ' 200 ' && return 0
		alive aggregator || return 1
		sleep 0.1
	done
	return 1
}
cli() { TOLLGATE_URL=$url TOLLGATE_TOKEN_FILE=$state/admin.token "$bin/tollgate" "$@" 9>&-; }

start_exporter() { # index
	local node=${nodes[$1]} p=$((exporter_port + $1)) sim=() extra=()
	if [ "$gpus" = sim ]; then
		local scenario=${node#demo-} dir=$state/sim/$node
		[ "$scenario" != shared ] || { scenario=timeslice && extra=(--replicas 4); }
		mkdir -p "$dir/proc" "$dir/pods"
		sim=(TOLLGATE_SIM_SCENARIO="$here/$scenario.yaml" TOLLGATE_SIM_T0_NS="$t0" TOLLGATE_SIM_PROC="$dir/proc" TOLLGATE_SIM_PODS="$dir/pods")
		extra+=(--nvml-library "$bin/sim/libnvidia-ml.so.1" --proc-root "$dir/proc" --pods-root "$dir/pods")
	fi
	spawn "exporter-$node" TERM env "${sim[@]}" "$bin/tollgate-exporter" --node "$node" --listen "127.0.0.1:$p" --aggregator-url "$url" \
		--token-file "$state/node-$node.token" --join-token-file "$state/node-$node.join" --spool-dir "$state/spool/$node" --interval 5s "${extra[@]}"
}

# ---- tokens, policy -------------------------------------------------------------------------------------------------

token() { # file, then the command that prints what belongs there
	local file=$state/$1
	shift
	[ -s "$file" ] && return 0
	(umask 077 && cli "$@" >"$file.new") && mv "$file.new" "$file" || { rm -f "$file.new" && return 1; }
}
enrol() { # node: as on a real one, its exporter gets the token by itself, with a join token that works once
	rm -f "$state/node-$1.join"
	[ -s "$state/node-$1.token" ] || token "node-$1.join" node join-token --node "$1"
}
# A ledger that the program refuses because this checkout cannot upgrade it: who made it and a suffix for its directory, or nothing.
#  1. versions before 0.2 numbered the files of their schema otherwise; each of them had this third one
#  2. a commit that was not released had another text of one of the files that this checkout has
# A ledger of a later version stays where it is: the program says which one it needs.
unfit_ledger() {
	local number name sum file files
	files=$(printf '%s\n' "$root"/sql/[0-9]*.sql | wc -l)
	while read -r number name sum; do
		if [ "$name" = 0003_billing.sql ]; then
			echo "before-0.2 a version before 0.2"
			return
		fi
		file=$root/sql/$name
		if [ "$number" -le "$files" ] && [ "$(sha256sum "$file" 2>/dev/null | cut -d ' ' -f 1)" != "$sum" ]; then
			echo "unreleased a commit that was not released, with another text of sql/$name,"
			return
		fi
	done < <(psql_quiet -F ' ' -d "$database" -c "select number, name, encode(sha256, 'hex') from tollgate.schema_migration order by name <> '0003_billing.sql', number" 2>/dev/null)
}
move_state_aside() { # suffix, who made the ledger
	local old
	old=$state.$1-$(date +%Y%m%dT%H%M%S)
	halt postgres INT 30
	mv -T "$state" "$old" || die "the ledger in $state was made by $2 and cannot be upgraded, and $state cannot be renamed; set TOLLGATE_STATE to another directory"
	mkdir -p "$log" && exec 9>"$state/lock" && flock -n 9 || die "the state directory $state cannot be made anew; set TOLLGATE_STATE to another one"
	echo $$ >"$state/run.pid"
	say "the ledger in $state was made by $2 and cannot be upgraded: the directory is now $old, and a new ledger begins"
}
prepare_ledger() {
	psql_quiet -d postgres -c "select 1 from pg_database where datname = '$database'" | grep -q 1 ||
		psql_quiet -d postgres -c "create database $database" || return 1
	TOLLGATE_DATABASE=$(conninfo tollgate) "$bin/tollgate-aggregator" --migrate $ledger_flag --daemon-role tollgate_daemon \
		>>"$log/aggregator.log" 2>&1 || { last_words aggregator; return 1; }
	if [ ! -s "$state/admin.token" ] || [ "$(cat "$state/ledger" 2>/dev/null)" != "$database" ]; then
		rm -f "$state"/*.token
		TOLLGATE_DATABASE=$(conninfo tollgate_daemon) "$bin/tollgate-aggregator" $ledger_flag --issue-admin-token "$state/admin.token" \
			>>"$log/aggregator.log" 2>&1 || { last_words aggregator; return 1; }
		echo "$database" >"$state/ledger"
	fi
}
prepare_policy() {
	local policy=$here/policy.yaml node tenant applied
	if [ "$gpus" = real ]; then
		policy=$state/policy.yaml
		[ -f "$policy" ] || sed "s/\${NODE}/${nodes[0]}/" "$here/policy-host.yaml" >"$policy"
	fi
	# Only the first run applies it: what has been applied since is the ledger's policy, and this file would retire what it does not name.
	applied=$(psql_quiet -d "$database" -c "select exists (select from tollgate.policy_version)") || return 1
	if [ "$applied" = t ]; then
		say "the ledger has a policy, which stays as it is; to change it: tollgate apply -f FILE"
	else
		cli apply -f "$policy" >"$log/apply.log" 2>&1 || { last_words apply; return 1; }
	fi
	for node in "${nodes[@]}"; do enrol "$node" || return 1; done
	for tenant in "${tenants[@]}"; do token "viewer-$tenant.token" token create --role viewer --tenant "$tenant" || return 1; done
	token scheduler.token token create --role scheduler || return 1
	printf 'export TOLLGATE_URL=%s\nexport TOLLGATE_TOKEN_FILE=%q\nPATH=%q:$PATH\n' "$url" "$state/admin.token" "$bin" >"$state/env"
}

# ---- what a person sees ---------------------------------------------------------------------------------------------

introduce() {
	local i
	say ""
	if [ "$gpus" = real ]; then
		say "Tollgate meters the real GPUs of this host ($(head -n 1 /proc/driver/nvidia/version 2>/dev/null))."
	else
		say "Tollgate meters SIMULATED GPUs: this host has no NVIDIA driver. The exporters run on a library with NVML's ABI."
	fi
	say ""
	say "  aggregator   $url            metrics at /metrics"
	for ((i = 0; i < ${#nodes[@]}; i++)); do
		printf '  %-12s http://127.0.0.1:%s/metrics\n' "${nodes[$i]}" "$((exporter_port + i))"
	done
	say "  database     socket $state/pg/sock, database $database"
	say "  state        $state (tokens, spools, logs; kept for the next run)"
	say ""
	say "In another terminal:"
	say "  . $state/env"
	say "  tollgate report current --format csv       the bill so far"
	say "  tollgate usage --by node,gpu,state         where the GPU time went"
	say "  tollgate conservation                      every GPU's states against its time in service"
	say ""
	if [ -n "$run_seconds" ]; then say "Runs for $run_seconds seconds."; else say "Ctrl-C stops it."; fi
	say ""
}
table_lines=0
show_table() {
	local text
	if ! text=$(cli top --count 1 2>&1); then
		say "the table cannot be shown: $text"
		table_lines=0
		return 1
	fi
	if [ -t 1 ] && [ "$table_lines" -gt 0 ]; then printf '\033[%dA\033[J' "$table_lines"; fi
	printf '%s\n' "$text"
	table_lines=$(($(printf '%s\n' "$text" | wc -l)))
	[ -t 1 ] || say ""
}

# ---- the run --------------------------------------------------------------------------------------------------------

stopping=0
trap 'stopping=1' INT TERM HUP

stop_all() {
	local node text
	for node in "${nodes[@]}"; do # at once, then wait: each sends its last interval first
		alive "exporter-$node" && kill -TERM "${pid_of[exporter-$node]}" 2>/dev/null
	done
	for node in "${nodes[@]}"; do halt "exporter-$node" TERM 15; done
	if [ "${ready:-0}" = 1 ] && alive aggregator; then
		table_lines=0
		show_table
		if text=$(cli report current --format csv --output "$state/report.csv" 2>&1); then
			say "The bill so far is in $state/report.csv; the next run goes on from here."
		else
			say "the bill so far cannot be written to $state/report.csv: $text"
		fi
	fi
	halt aggregator TERM 15
	halt postgres INT 30
	[ -z "${locked:-}" ] || rm -f "$state/run.pid"
}
trap stop_all EXIT

supervise() { # a child that was killed is started again; its spool, stream and database see to it that nothing is lost or doubled
	local i
	alive postgres || { say "PostgreSQL ended; starting it again" && table_lines=0 && start_postgres; }
	alive aggregator || { say "the aggregator ended; starting it again" && table_lines=0 && start_aggregator; }
	for ((i = 0; i < ${#nodes[@]}; i++)); do
		alive "exporter-${nodes[$i]}" || { say "the exporter of ${nodes[$i]} ended; starting it again" && table_lines=0 && start_exporter "$i"; }
	done
}

check
t0=$(awk '{printf "%.0f", $1 * 1e9}' /proc/uptime)
rm -rf "$state/sim"
run_postgres() {
	create_postgres
	start_postgres
	wait_postgres || { last_words postgres; die "PostgreSQL does not start; see $log/postgres.log"; }
}
run_postgres
unfit=$(unfit_ledger)
if [ -n "$unfit" ]; then
	move_state_aside "${unfit%% *}" "${unfit#* }"
	run_postgres
fi
prepare_ledger || die "the ledger cannot be prepared; see $log/aggregator.log"
start_aggregator
wait_aggregator || { last_words aggregator; die "the aggregator does not start; see $log/aggregator.log"; }
prepare_policy || die "the policy or a token cannot be prepared; see $log/apply.log"
for ((n = 0; n < ${#nodes[@]}; n++)); do start_exporter "$n"; done
sleep 1
for node in "${nodes[@]}"; do
	alive "exporter-$node" || { last_words "exporter-$node"; die "the exporter of $node does not start; see $log/exporter-$node.log"; }
done
ready=1
introduce

SECONDS=0
next_table=7
while [ "$stopping" = 0 ] && { [ -z "$run_seconds" ] || [ "$SECONDS" -lt "$run_seconds" ]; } && [ -d "/proc/$PPID" ]; do
	sleep 1 9>&- &
	wait $!
	[ "$stopping" = 0 ] || break
	supervise
	if [ "$SECONDS" -ge "$next_table" ]; then
		show_table
		next_table=$((SECONDS + 5))
	fi
done
say "stopping ..."
exit 0
