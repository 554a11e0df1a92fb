/* tests/support/scheduler/podres_tool.c - the exporter's kubelet client alone: podres_tool SOCKET [PODS_ROOT [CGROUP_ROOT]].
 *
 * Asks all the time. For each line on stdin it prints what holds, one line per device and then an empty one; what it prints first
 * is how the last question went: "up", "away" (nobody listens, and nobody ever did) or the error. */
#include <stdio.h>

#include "common/base/time.h"
#include "exporter/identity/kubelet/podres.h"

static void
show(void *arg, const struct podres_grant *g)
{
	(void)arg;
	printf("%s/%s/%s/%s %s %d/%d\n", g->ns, g->pod, g->uid, g->container, g->device, g->replica, g->replica_of);
}

int
main(int argc, char **argv)
{
	struct podres_options o = {.socket_path = argc > 1 ? argv[1] : "",
	                           .pods_root = argc > 2 ? argv[2] : "/nonexistent",
	                           .cgroup_root = argc > 3 ? argv[3] : "/nonexistent",
	                           .refresh_ns = NS_PER_S / 2,
	                           .timeout_ns = 2 * NS_PER_S};
	struct podres *p = NULL;
	struct podres_stats s;
	struct err err;
	char line[64];

	if (!podres_start(&o, &p, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	podres_wait_first(p, NS_PER_MIN);
	while (fgets(line, sizeof(line), stdin)) {
		podres_stats(p, &s);
		printf("%s\n", s.up ? "up" : s.used ? s.trouble.text : "away");
		(void)podres_visit(p, show, NULL);
		printf("\n");
		fflush(stdout);
	}
	podres_free(p);
	return 0;
}
