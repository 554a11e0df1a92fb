/* aggregator/core/quota/book/decision_ask.h - a request for capacity as clients write it, and as the quota book reads it. Pure.
 *
 *   {"request_id": "job-4711", "workspace": "acme/prod", "cluster": "c1", "gpu_model": "H100",
 *    "gpus": 8 | "profile": "1g.10gb", "count": 2 | "replicas": 1, "of": 4,
 *    "per_node": 8, "priority_class": "high" | "priority": 10, "preemptible": true, "expected_duration": "2h", "expires": "30m",
 *    "queued_since": "2027-01-31T00:00:00Z", "cpu": "64" | "500m", "memory": "512Gi", "storage": "10Ti", "reason": "Resources",
 *    "workload": {"namespace": ..., "pod": ..., "pod_uid": ...} | {"slurm_job": ...},
 *    "workloads": ["6f1c...", "claim:97ab...", "slurm:4711.2"]}
 *
 * Only request_id, workspace and one of gpus, profile and replicas are required. Only schedulers and operators may give a priority as a number: it
 * is above all classes that a tenant may use. Only they may give queued_since: since when the work is in the scheduler's own queue, over all its requests;
 * and reason, at most 128 bytes: why the scheduler says that the work waits.
 *
 * Without workspace the attribution rules of the ledger (core/policy/attribution.h) find it from the workload, which has the fields that they match:
 *
 *   "workload": {"namespace": ..., "labels": {"team": "ml"}, ...} | {"slurm_account": ..., "user": ..., "uid": 1000, "group": ..., ...}
 *
 * Beside workspace these fields are refused: they could contradict it.
 *
 * Work of several parts (a gang of pods, a heterogeneous job) names them all as workloads: a pod by its UID, a claim for devices as claim:UID, a Slurm
 * job by its raw id and, where it was requeued, how often, slurm:ID.RESTARTS. A lease is seen where any of them, or its workload, is seen. Telemetry
 * shows pods and jobs, not how often a job was requeued, and no claims: a lease that names nothing but claims is seen as one without workload.
 *
 * A request_id belongs to the tenant of the workspace: two tenants may use the same one. The engine and its log know a request by its
 * key, TENANT/REQUEST_ID. In older rows and logs the key is the bare request_id. */
#ifndef TOLLGATE_DECISION_ASK_H
#define TOLLGATE_DECISION_ASK_H

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/conf/json.h"
#include "common/wire/wire.h"

/* The identity of a workload in telemetry; NULL: not given. */
struct decision_workload {
	const char *namespace, *pod, *pod_uid, *slurm_job;
	const char *list; /* workloads: a JSON list of sound names, stored and shown as it is */
};

#define DECISION_ID_SIZE 64 /* of a request_id, with the NUL */
#define DECISION_TENANT_SIZE (LIMIT_LABEL + 1)

struct decision_body {
	char request_id[DECISION_ID_SIZE];
	char key[QUOTA_ID_SIZE];
	/* "acme/prod"; empty: to be looked up from the workload */
	char workspace[2 * QUOTA_NAME_SIZE];
	char tenant[DECISION_TENANT_SIZE]; /* "acme" */
	struct buf request;                /* for a submit event, once the workspace is known */
	struct buf body;                   /* the request as given, with sorted keys */
	uint8_t digest[SHA256_SIZE];       /* of body: the same request has the same one however it is spelt */
	struct decision_workload workload; /* lives as long as doc and workloads */
	struct buf workloads;              /* the list of workload */
	const char *cluster, *model;       /* that are named; NULL: none. They live as long as doc */
	const char *klass;                 /* likewise the priority class */
	struct wire_holder holder;         /* without workspace: as attribution rules see the workload */
	struct buf members;                /* of request, behind the workspace */
	size_t model_from, model_until;    /* where the model is in members */
};
/* The request for a submit event, with this name of its model; NULL: as it was asked. Its workspace is known. */
void decision_body_write(const struct decision_body *b, const char *model, struct buf *out);
void decision_body_fini(struct decision_body *b);
/* Enters the workspace, TENANT/NAME, of a request that named its workload. */
MUST_CHECK bool decision_body_place(struct decision_body *b, const char *workspace, struct err *err);
/* ERR_MISSING: no rule gives the workload to a workspace that the asker may know. Names the fields that were matched, and nothing else. */
bool decision_body_no_workspace(const struct decision_body *b, struct err *err);

/* tenant: of the client, which may leave it out of the workspace; NULL: an operator or scheduler, who may name any workspace. ERR_INVALID begins with the
 * faulty field; ERR_MISSING: the workspace is not the tenant's. */
MUST_CHECK bool decision_body_read(const json_t *doc, const char *tenant, int64_t now_ns, struct decision_body *ret,
                                   struct err *err);
/* Work that runs already, as a scheduler or operator adopts it: a request with
 *
 *   "started": "2027-01-31T00:00:00Z", "parts": [{"node": "n1", "gpu": UUID, "count": 1}]
 *
 * both optional. Without gpu the devices are anywhere on the node; count is 1 unless given. The request of the body is then an adopt event's. It is
 * another request than one to be decided, whatever it says, and has another digest. */
MUST_CHECK bool decision_adoption_read(const json_t *doc, int64_t now_ns, struct decision_body *ret, struct err *err);
/* The member "workload" of an object, if it has one. */
MUST_CHECK bool decision_workload_read(const json_t *doc, struct decision_workload *ret, struct err *err);
/* The member "workloads" of an object as the list of decision_workload; without one out stays empty. */
MUST_CHECK bool decision_workloads_read(const json_t *doc, struct buf *out, struct err *err);
/* 1 to 63 letters, digits, '.', '_', ':' and '-', beginning with a letter or digit. */
bool decision_id_sound(const char *id);
/* The request_id of a key. */
const char *decision_key_id(const char *key);

#endif
