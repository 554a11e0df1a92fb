/* aggregator/api/openapi.c - GET /v1/openapi.json: the API as a document, made from the route table.
 *
 * Methods, paths, roles and summaries are the routes' own. What a route table has no use for (parameters, media types,
 * schemas) is in the tables below; a route without a row there is in the document all the same.
 *
 * Fields are written as one line of words, name:type. A type is text, time, day, decimal, int, bool, any, the name of a
 * schema, or one of these in [] for a list; after it ? says that the field may be absent and ~ that it may be null. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/access/access.h"
#include "common/conf/json.h"

#define JSON "application/json"
#define CSV "text/csv"
#define TEXT "text/plain"
#define YAML "application/yaml"
#define OPENMETRICS "application/openmetrics-text"
#define FRAMES "application/octet-stream"
#define EVENT "application/cloudevents+json"
#define EVENTS "application/cloudevents-batch+json"

#define PAGE "limit:int? before:int?"
#define RANGE "from:time? to:time?"
static const struct schema {
	const char *name, *fields, *rest; /* rest: the type of members that are not named; NULL: there are none */
} schemas[] = {
	{"Problem",
         "type:text title:text status:int detail:text request_id:text field:text? epoch:int? expected_seq:int? limit:text?",
         NULL},
	{"IngestReply", "epoch:int next_seq:int batches:int duplicates:int quarantined:int set_aside:int", NULL},
	{"QuarantinedBatch",
         "id:int node:text stream:int epoch:int seq:int last_seq:int gpu:text class:text reason:text from:time to:time records:int "
         "received:time age_seconds:int decision:text decided_by:text~ decided:time~ why:text~ sha256:text? bytes:int? "
         "exporter_version:text? device_count:int? holder_count:int? devices:any? holders:any? first_records:any?",
         NULL},
	{"Quarantine", "batches:[QuarantinedBatch] next:int~", NULL},
	{"Decision", "reason:text", NULL},
	{"QuarantineDecision", "reason:text gpu:text?", NULL},
	{"JournalAccept", "reason:text", NULL},
	{"JournalAccepted", "entry:int relation:text operation:text keys:any at:time", NULL},
	{"GpuMove", "node:text reason:text at:text?", NULL},
	{"GpuMoved", "gpu:text node:text next_node:text until:time~", NULL},
	{"CloseRequest", "reason:text?", NULL},
	{"CloseJob",
         "period:text state:text stage:text step:text done:int total:int actor:text reason:text asked:time updated:time ended:time~ attempts:int "
         "error:text proof:any differences:any closed:any",
         NULL},
	{"StatusInstance", "gi:int ci:int units:int uuid:text profile:text", NULL},
	{"StatusHolder",
         "tenant:text? workspace:text? kind:text namespace:text? pod:text? pod_uid:text? container:text? slurm_job:text? "
         "slurm_account:text? user:text uid:int device:text replica:int allocated:bool holds:bool active:bool",
         NULL},
	{"StatusGpu",
         "uuid:text model:text? gpu_model:text? index:int healthy:bool reason:text xid:int xid_at:int? sharing:text replicas:int "
         "instances:[StatusInstance] holders:[StatusHolder]",
         NULL},
	{"Status",
         "node:text boot_id:text boot_ns:int wall_ns:int interval_ns:int simulated:bool left_out:int gpus:[StatusGpu]",
         "any"},
	{"StatusReply", "kept:bool skew_ns:int", NULL},
	{"NodeStatus",
         "node:text cluster:text tenant:text received_at:time~ age_seconds:int~ silent:bool skew_seconds:decimal~ "
         "skewed:bool gpus:int healthy:int held:int left_out:int devices:[StatusGpu]",
         NULL},
	{"Event",
         "specversion:text id:text source:text type:text time:time subject:text? datacontenttype:text? dataschema:text? "
         "data:any",
         "any"},
	{"EventProblem", "status:int field:text? detail:text", NULL},
	{"EventFate", "index:int id:text~ source:text~ status:text problem:EventProblem?", NULL},
	{"EventsReply", "accepted:int duplicates:int conflicts:int refused:int events:[EventFate]", NULL},
	{"MeterTotal",
         "tenant:text workspace:text category:text meter:text unit:text sku:text end_user:text? quantity:decimal events:int",
         NULL},
	{"Meters", "period:text from:time to:time meters:[MeterTotal]", NULL},
	{"PolicyReply",
         "dry_run:bool changes:int version:int effective:time quota:text diff:text reattributing:bool corrects_from:text~",
         NULL},
	{"PolicyProgress",
         "running:bool effective:time~ started:time~ finished:time~ holders:int holders_done:int changed:int hours_dirty:int",
         NULL},
	{"PricedTenant", "tenant:text currency:text now:decimal then:decimal difference:decimal unpriced_lines:int",
         NULL},
	{"PricedTotal", "currency:text now:decimal then:decimal difference:decimal", NULL},
	{"PricePreview", "period:text status:text version:text tenants:[PricedTenant] totals:[PricedTotal]", NULL},
	{"TokenRequest", "role:text tenant:text? node:text? sources:text? description:text? expires:text?", NULL},
	{"TokenMade", "id:int role:text name:text expires:time~ token:text", NULL},
	{"Token",
         "id:int role:text tenant:text~ node:text~ sources:text~ name:text description:text~ created_by:text~ created:time "
         "expires:time~ last_used:time~ revoked:time~ revoked_by:text~ status:text",
         NULL},
	{"Tokens", "tokens:[Token] next:int~", NULL},
	{"JoinTokenRequest", "node:text? description:text? expires:text?", NULL},
	{"JoinTokenMade", "id:int node:text~ expires:time~ join_token:text", NULL},
	{"JoinToken",
         "id:int node:text~ description:text~ created_by:text~ created:time expires:time~ used:time~ used_by_node:text~ "
         "token_id:int~ revoked:time~ status:text",
         NULL},
	{"JoinTokens", "join_tokens:[JoinToken] next:int~", NULL},
	{"JoinRequest", "node:text", NULL},
	{"Joined", "id:int role:text node:text token:text", NULL},
	{"AuditEntry",
         "id:int at:time actor:text action:text subject:text tenant:text~ before:any~ after:any~ reason:text~", NULL},
	{"Audit", "entries:[AuditEntry] next:int~", NULL},
	/* the keys of group_by, labels among them, and by state one number, else one of each state; with cost=1 costs, and on the first page those without a workload */
	{"UsageCost", "currency:text amount:decimal", NULL},
	{"UsageRest", "tenant:text workspace:text cluster:text gpu_model:text reason:text currency:text amount:decimal",
         NULL},
	{"UsageGroup",
         "cluster:text? tenant:text? workspace:text? user:text? workload:text? gpu_model:text? profile:text? node:text? "
         "gpu:text? sharing:text? day:day? hour:time? state:text? method:text? gpu_hours:decimal? unit_ns:decimal? costs:[UsageCost]?",
         "text"},
	{"Usage",
         "from:time to:time groups:[UsageGroup] costs_without_workload:[UsageRest]? costs_total:[UsageCost]? next:text~",
         NULL},
	{"GpuConservation",
         "node:text gpu:int uuid:text gpu_model:text in_service_gpu_hours:decimal sum_gpu_hours:decimal "
         "difference_gpu_hours:decimal in_service_unit_ns:decimal sum_unit_ns:decimal clock_adjust_unit_ns:decimal "
         "difference_unit_ns:decimal",
         "decimal"},
	{"Conservation", "from:time to:time gpus:[GpuConservation]", NULL},
	{"Difference", "kind:text node:text gpu:text hour:text what:text expected:text found:text difference:text",
         NULL},
	{"ExceptionRequest",
         "workspace:text cluster:text? gpu_model:text gpus:any kind:text? shared:bool? from:text? until:text reason:text",
         NULL},
	{"Exception",
         "id:int tenant:text workspace:text cluster:text gpu_model:text kind:text gpus:text units:int shared:bool from:time until:time "
         "status:text running:bool reason:text requested_by:text requested:time rule:text~ decided_by:text~ decided:time~ "
         "decided_why:text~ over_by:text~ over:time~ over_why:text~",
         NULL},
	{"Exceptions", "exceptions:[Exception] next:int~", NULL},
	{"AuditVerified",
         "differences:[Difference] count:int left_out:int entries:int events:int journal:int seals:int unsealed:int next:text~",
         NULL},
	{"Verified",
         "from:time to:time differences:[Difference] count:int left_out:int nodes:int hours:int batches:int records:int "
         "days:int charges:int rows:int schema:int months:int documents:int lines:int lines_rated:int months_changed:int months_earlier:int pending:int hours_unproved:int days_open:int days_gone:int quarantined:int set_aside:int batches_outside:int unanchored:int schema_texts:int proved_from:time",
         NULL},
	{"ReportTotal", "invoice_id:text tenant:text allocated_gpu_hours:decimal billed_cost:decimal currency:text",
         NULL},
	/* the columns of the CSV, as text */
	{"ReportLine", "tenant:text workspace:text provisional:bool?", "text"},
	{"ReportPromise",
         "tenant:text workspace:text owed_wait_seconds:text? owed_requests:text? owed_late:text? longest_wait_seconds:text? owed_kept:text? delivered_percent:text? "
         "measured_percent:text? delivered_kept:text?",
         NULL},
	{"DocumentSum", "currency:text list_cost:decimal discount:decimal rounding:decimal billed_cost:decimal", NULL},
	/* and, with manifest=1, of any document: document to sums */
	{"Report",
         "period:text period_status:text currency:text? totals:[ReportTotal]? lines:[ReportLine]? document:text? tenant:text~? "
         "invoice_version:int? chargeback_lines:int? rows:int? bytes:int? sha256:text? sums:[DocumentSum]? promises:[ReportPromise]?",
         NULL},
	{"Budget",
         "tenant:text workspace:text kind:text unit:text limit:decimal consumed:decimal forecast:decimal ratio:decimal "
         "threshold:int forecast_breach:bool method:text method_text:text",
         NULL},
	{"Budgets", "period:text budgets:[Budget]", NULL},
	{"Promise",
         "tenant:text workspace:text data_boundary:text owed_wait_seconds:decimal~ owed_requests:int owed_late:int longest_wait_seconds:decimal~ "
         "owed_kept:bool~ delivered_percent:decimal~ reserved_gpu_hours:decimal~ undelivered_gpu_hours:decimal~ measured_percent:decimal~ "
         "measured_days:int delivered_kept:bool~",
         NULL},
	{"Promises", "period:text promises:[Promise]", NULL},
	{"ReconcileHours",
         "on_demand:decimal borrowed:decimal covered:decimal unused:decimal dedicated:decimal shared:decimal idle:decimal "
         "stranded:decimal down:decimal unknown:decimal",
         NULL},
	{"ReconcileTerm", "section:text item:text amount:decimal", NULL},
	{"ReconcileRow",
         "level:text cluster:text gpu_model:text currency:text list_price:decimal~ capacity_gpu_hours:decimal "
         "gpu_hours:ReconcileHours unpriced_gpu_hours:decimal differing_gpu_hours:decimal capacity_value:decimal billed:decimal "
         "credits:decimal unrecovered:decimal prices:decimal terms:[ReconcileTerm] agrees:bool",
         NULL},
	{"ReconcileTotal",
         "currency:text capacity:decimal energy:decimal storage:decimal network:decimal inference:decimal support:decimal "
         "other:decimal adjustments:decimal corrections:decimal total:decimal platform_cost:decimal~ difference:decimal~",
         NULL},
	{"Reconciliation",
         "period:text period_status:text period_start:day period_end:day rows:[ReconcileRow] totals:[ReconcileTotal]",
         NULL},
	{"Refund",
         "id:text tenant:text workspace:text kind:text user:text job:text namespace:text pod:text container:text cluster:text "
         "node:text gpu:text device:text gpu_model:text mig_profile:text from:time until:time cause:text xid:text failed_gpu:text "
         "credits:text gpu_hours:decimal reserved_gpu_hours:decimal charged:decimal currency:text",
         NULL},
	{"Refunds", "period:text refunds:[Refund]", NULL},
	{"AdjustmentRequest",
         "tenant:text workspace:text? period:text? amount:decimal currency:text category:text? reason:text refund:text?",
         NULL},
	{"AdjustmentDecision", "reason:text period:text?", NULL},
	{"Adjustment",
         "id:int tenant:text workspace:text period:text amount:decimal currency:text category:text reason:text status:text "
         "requested_by:text requested:time approved_by:text~ approved:time~ reverses:int~ reversed_by:int~ refund:text~",
         NULL},
	{"Adjustments", "adjustments:[Adjustment] next:int~", NULL},
	{"Tenant",
         "name:text display_name:text cost_center:text owner:text data_boundary:text workspaces:int isolation:text maximum:text "
         "default_limit:text members:int builtin:bool since:time~ until:time~",
         NULL},
	{"Workspace",
         "tenant:text name:text description:text rules:int members:int reserved:text reserved_shared:text limit:text "
         "borrow:text lend:text weight:int~ enforce:text builtin:bool since:time~ until:time~",
         NULL},
	{"Node",
         "name:text cluster:text tenant:text shared:bool declared:bool isolation:text state:text gpus:int capacity:text "
         "covered_until:time~ silent:bool approval:text approved_by:text approved_at:time~ first_seen:time~ held_batches:int",
         NULL},
	{"NodeApproval", "node:text approval:text changed:bool", NULL},
	{"Member", "tenant:text workspace:text user:text role:text since:time", NULL},
	{"Said", "kind:text tenant:text subject:text value:text from:time until:time~", NULL},
	{"Period", "month:text starts_at:time ends_at:time status:text", NULL},
	{"Workload", "namespace:text?~ pod:text?~ pod_uid:text?~ slurm_job:text?~", NULL},
	/* without workspace: what attribution rules look at, of a pod or of a Slurm job */
	{"AskedWorkload",
         "namespace:text? labels:any? pod:text? pod_uid:text? slurm_job:text? slurm_account:text? user:text? uid:int? group:text?",
         NULL},
	{"Ask",
         "request_id:text workspace:text? cluster:text? gpu_model:text? gpus:int? profile:text? count:int? replicas:int? of:int? "
         "per_node:int? priority_class:text? priority:int? preemptible:bool? expected_duration:text? expires:text? cpu:text? "
         "memory:text? storage:text? workload:AskedWorkload?",
         NULL},
	{"Lease",
         "id:text state:text admitted_at:time confirmed_at:time~ seen_at:time~ released_at:time~ ended_at:time~ reclaim:text~",
         NULL},
	/* and the members of the verdict, or of a dry run's */
	{"Verdict",
         "id:text? decision:text? borrowed_gpus:any? victims:any? checks:any? workspace:text? would:text? warn:bool? owed:bool? "
         "pool:text? position:int? queue_length:int? queue_pool:text? expected_start:time?~ expected_start_reason:text? summary:text?~ borrowed_units:int? nodes:any? reasons:any? changes:any?",
         NULL},
	{"Decided",
         "request_id:text tenant:text? status:text? decision:text? rule:text? asked_by:text? submitted_at:time? changed_at:time? "
         "ended_at:time?~ ended_why:text?~ seq:int? request:Ask? lease:Lease?~ warnings:any? borrowed_gpus:any? victims:any? "
         "checks:any? workspace:text? would:text? warn:bool? owed:bool? pool:text? position:int? queue_length:int? queue_pool:text? expected_start:time?~ expected_start_reason:text? "
         "summary:text?~ borrowed_units:int? nodes:any? "
         "reasons:any? changes:any? dry_run:bool? verdict:Verdict?",
         NULL},
	{"DecisionRow",
         "id:int request_id:text workspace:text status:text decision:text would:text rule:text warn:bool position:int queue_pool:text?~ expected_start:time?~ "
         "request:Ask asked_by:text submitted_at:time changed_at:time admitted_at:time~ confirmed_at:time~ seen_at:time~ "
         "released_at:time~ ended_at:time~ ended_why:text~ reclaim:text~",
         NULL},
	{"Decisions", "decisions:[DecisionRow] next:int~", NULL},
	{"Leases", "leases:[DecisionRow] next:int~", NULL},
	{"LeaseEvent", "nodes:any? workload:Workload?", NULL},
	{"Reclaim",
         "id:int lease:text workspace:text cause:text for:text~ state:text ordered_at:time due_at:time~ acked_at:time~ "
         "ended_at:time~ seq:int workload:Workload",
         NULL},
	{"Reclaims", "reclaims:[Reclaim] seq:int", NULL},
	{"QuotaAccount",
         "cluster:text workspace:text gpu_model:text pool:text would_deny:int limit_units:int~ reserved_units:int "
         "in_use_units:int held_units:int borrowed_units:int on_demand_units:int lent_units:int idle_units:int borrow_units:int~ lend_units:int~ queued_units:int",
         NULL},
	{"QuotaPool",
         "cluster:text tenant:text~ gpu_model:text declared_units:int live_units:int in_use_units:int held_units:int "
         "free_units:int excess_units:int reserved_units:int borrowed_units:int on_demand_units:int lent_units:int protected_units:int",
         NULL},
	{"Quota", "seq:int at:time~ workspaces:[QuotaAccount] pools:[QuotaPool] held_without_lease:any?", NULL},
	{"QuotaAnomaly", "kind:text subject:text tenant:text since:time last:time detail:any", NULL},
	{"QuotaAnomalies", "anomalies:[QuotaAnomaly]", NULL},
	{"Recording", "recording:int state:any state_seq:int events:any", NULL},
};

static const struct door {
	const char *method, *path;
	const char *tail;  /* the part of the path that follows a prefix: fields, divided by slashes */
	const char *query; /* fields */
	const char *body_type, *body;
	const char *other_body_type, *other_body;
	int status; /* of success; 0: 200 */
	int partly; /* of success that is not whole, with the same reply; 0: there is none */
	const char *reply_type, *reply;
	const char *other_type; /* as which the same can be had */
	const int errors[3];    /* beside those that any route of its kind has */
} doors[] = {
	{"GET", "/healthz", .reply_type = TEXT},
	{"GET", "/readyz", .reply_type = TEXT},
	{"GET", "/metrics", .reply_type = TEXT, .other_type = OPENMETRICS},
	{"GET", "/v1/openapi.json", .reply_type = JSON, .reply = "any"},
	{"POST", "/v1/ingest", .body_type = FRAMES, .reply_type = JSON, .reply = "IngestReply", .errors = {409, 422}},
	{"GET", "/v1/quarantine", .query = "node:text? stream:int? class:text? decision:text? " PAGE,
         .reply_type = JSON, .reply = "Quarantine"},
	{"GET", "/v1/quarantine/", .tail = "stream:int seq:int", .query = "gpu:text?", .reply_type = JSON,
         .reply = "QuarantinedBatch"},
	{"POST", "/v1/quarantine/", .tail = "stream:int seq:int decision:text", .body_type = JSON,
         .body = "QuarantineDecision", .reply_type = JSON, .reply = "QuarantinedBatch", .errors = {409}},
	{"POST", "/v1/status", .body_type = JSON, .body = "Status", .reply_type = JSON, .reply = "StatusReply",
         .errors = {422}},
	{"GET", "/v1/status", .query = "tenant:text? node:text?", .reply_type = JSON, .reply = "[NodeStatus]"},
	{"POST", "/v1/gpus/", .tail = "uuid:text act:text", .body_type = JSON, .body = "GpuMove", .reply_type = JSON,
         .reply = "GpuMoved", .errors = {404, 409}},
	{"POST", "/v1/events", .body_type = EVENT, .body = "Event", .other_body_type = EVENTS, .other_body = "[Event]",
         .reply_type = JSON, .reply = "EventsReply", .partly = 207, .errors = {404, 409}},
	{"GET", "/v1/events/summary", .query = "period:text? meter:text? tenant:text? by:text?", .reply_type = JSON,
         .reply = "Meters"},
	{"PUT", "/v1/policy", .query = "dry_run:int? name:text?", .body_type = YAML, .reply_type = JSON,
         .reply = "PolicyReply", .errors = {409}},
	{"GET", "/v1/policy", .query = "tenant:text?", .reply_type = YAML, .errors = {404}},
	{"GET", "/v1/policy/progress", .reply_type = JSON, .reply = "PolicyProgress"},
	{"GET", "/v1/policy/suggest", .query = RANGE, .reply_type = YAML},
	{"POST", "/v1/prices/preview", .query = "period:text? tenant:text? name:text?", .body_type = YAML,
         .reply_type = JSON, .reply = "PricePreview", .errors = {404}},
	{"POST", "/v1/tokens", .body_type = JSON, .body = "TokenRequest", .status = 201, .reply_type = JSON,
         .reply = "TokenMade", .errors = {404, 409}},
	{"GET", "/v1/tokens", .query = "tenant:text? role:text? node:text? status:text? " PAGE, .reply_type = JSON,
         .reply = "Tokens"},
	{"DELETE", "/v1/tokens/", .tail = "id:int", .reply_type = JSON, .reply = "Token"},
	{"GET", "/v1/whoami", .reply_type = JSON, .reply = "Token"},
	{"POST", "/v1/join-tokens", .body_type = JSON, .body = "JoinTokenRequest", .status = 201, .reply_type = JSON,
         .reply = "JoinTokenMade", .errors = {409}},
	{"GET", "/v1/join-tokens", .query = "status:text? " PAGE, .reply_type = JSON, .reply = "JoinTokens"},
	{"DELETE", "/v1/join-tokens/", .tail = "id:int", .reply_type = JSON, .reply = "JoinToken", .errors = {409}},
	{"POST", "/v1/join", .body_type = JSON, .body = "JoinRequest", .status = 201, .reply_type = JSON,
         .reply = "Joined", .errors = {409}},
	{"GET", "/v1/audit", .query = "tenant:text? actor:text? action:text? subject:text? " RANGE " " PAGE,
         .reply_type = JSON, .reply = "Audit"},
	{"GET", "/v1/audit/differences", .query = "after:text? seal:text?", .reply_type = JSON,
         .reply = "AuditVerified"},
	{"POST", "/v1/journal/", .tail = "entry:int act:text", .body_type = JSON, .body = "JournalAccept",
         .reply_type = JSON, .reply = "JournalAccepted", .errors = {404, 409}},
	{"POST", "/v1/decisions", .query = "dry_run:int? wait:text?", .body_type = JSON, .body = "Ask",
         .reply_type = JSON, .reply = "Decided", .errors = {404, 409}},
	{"GET", "/v1/decisions", .query = "tenant:text? workspace:text? status:text? " PAGE, .reply_type = JSON,
         .reply = "Decisions"},
	{"GET", "/v1/decisions/", .tail = "id:text", .query = "wait:text?", .reply_type = JSON, .reply = "Decided"},
	{"DELETE", "/v1/decisions/", .tail = "id:text", .reply_type = JSON, .reply = "Decided", .errors = {409}},
	{"GET", "/v1/leases", .query = "tenant:text? workspace:text? status:text? " PAGE, .reply_type = JSON,
         .reply = "Leases"},
	{"POST", "/v1/leases/", .tail = "id:text event:text", .body_type = JSON, .body = "LeaseEvent",
         .reply_type = JSON, .reply = "Decided", .errors = {409}},
	{"GET", "/v1/reclaims", .query = "tenant:text? wait:text? after:int?", .reply_type = JSON, .reply = "Reclaims"},
	{"POST", "/v1/reclaims/", .tail = "id:int event:text", .reply_type = JSON, .reply = "Decided", .errors = {409}},
	{"GET", "/v1/quota", .query = "tenant:text?", .reply_type = JSON, .reply = "Quota"},
	{"GET", "/v1/quota/anomalies", .query = "tenant:text?", .reply_type = JSON, .reply = "QuotaAnomalies"},
	{"GET", "/v1/quota/recording", .query = "from_seq:int? to_seq:int?", .reply_type = JSON, .reply = "Recording"},
	{"GET", "/v1/usage",
         .query = RANGE
         " group_by:text? tenant:text? workspace:text? cluster:text? user:text? gpu_model:text? node:text? "
         "limit:int? cursor:text? exact:int? format:text? cost:int?",
         .reply_type = JSON, .reply = "Usage", .other_type = CSV},
	{"GET", "/v1/conservation", .query = RANGE, .reply_type = JSON, .reply = "Conservation"},
	{"GET", "/v1/conservation/differences", .query = RANGE " node:text? part:text?", .reply_type = JSON,
         .reply = "Verified", .errors = {404}},
	{"GET", "/v1/reports/", .tail = "report:text",
         .query = "tenant:text? manifest:int? excel:int? focus_version:text?", .reply_type = JSON, .reply = "Report",
         .other_type = CSV, .errors = {409}},
	{"POST", "/v1/adjustments", .body_type = JSON, .body = "AdjustmentRequest", .status = 201, .reply_type = JSON,
         .reply = "Adjustment", .errors = {404, 409}},
	{"POST", "/v1/adjustments/", .tail = "id:int decision:text", .body_type = JSON, .body = "AdjustmentDecision",
         .reply_type = JSON, .reply = "Adjustment", .errors = {409}},
	{"GET", "/v1/adjustments", .query = "tenant:text? period:text? " PAGE, .reply_type = JSON,
         .reply = "Adjustments"},
	{"GET", "/v1/sla", .query = "period:text? tenant:text?", .reply_type = JSON, .reply = "Promises",
         .errors = {404}},
	{"GET", "/v1/budgets", .query = "period:text? tenant:text?", .reply_type = JSON, .reply = "Budgets"},
	{"GET", "/v1/reconciliation", .query = "month:text? format:text?", .reply_type = JSON,
         .reply = "Reconciliation", .other_type = CSV, .errors = {404}},
	{"POST", "/v1/exceptions", .body_type = JSON, .body = "ExceptionRequest", .status = 201, .reply_type = JSON,
         .reply = "Exception", .errors = {404}},
	{"POST", "/v1/exceptions/", .tail = "id:int decision:text", .body_type = JSON, .body = "Decision",
         .reply_type = JSON, .reply = "Exception", .errors = {409}},
	{"GET", "/v1/exceptions", .query = "tenant:text? workspace:text? status:text? " PAGE, .reply_type = JSON,
         .reply = "Exceptions"},
	{"GET", "/v1/refunds", .query = "month:text? tenant:text? format:text?", .reply_type = JSON, .reply = "Refunds",
         .other_type = CSV, .errors = {404}},
	{"GET", "/v1/tenants", .query = "tenant:text?", .reply_type = JSON, .reply = "[Tenant]"},
	{"GET", "/v1/workspaces", .query = "tenant:text?", .reply_type = JSON, .reply = "[Workspace]"},
	{"GET", "/v1/nodes", .query = "tenant:text?", .reply_type = JSON, .reply = "[Node]"},
	{"POST", "/v1/nodes/", .tail = "node:text verb:text", .body_type = JSON, .body = "Decision", .reply_type = JSON,
         .reply = "NodeApproval", .errors = {404}},
	{"GET", "/v1/members", .query = "tenant:text?", .reply_type = JSON, .reply = "[Member]"},
	{"GET", "/v1/history", .query = "tenant:text?", .reply_type = JSON, .reply = "[Said]"},
	{"GET", "/v1/periods", .query = "tenant:text?", .reply_type = JSON, .reply = "[Period]"},
	{"GET", "/v1/periods/", .tail = "month:text question:text", .query = "unknown_max:int? unattributed_max:int?",
         .reply_type = JSON, .reply = "any", .errors = {409}},
	{"POST", "/v1/periods/", .tail = "month:text verb:text", .query = "unknown_max:int? unattributed_max:int?",
         .body_type = JSON, .body = "CloseRequest", .status = 202, .reply_type = JSON, .reply = "CloseJob",
         .errors = {409}},
	{"DELETE", "/v1/periods/", .tail = "month:text verb:text", .reply_type = JSON, .reply = "CloseJob",
         .errors = {409}},
};

/* ---- fields ---- */

struct field {
	char name[64], type[64];
	bool optional, nullable;
};

/* Takes the next word off the line; false at its end. The lines are this file's own, so a bad one is a bug. */
static bool
next_field(const char **line, struct field *ret)
{
	const char *at = *line + strspn(*line, " ");
	size_t len = strcspn(at, " "), name = strcspn(at, ":"), type;

	*line = at + len;
	if (len == 0)
		return false;
	ASSERT(name < len && name < sizeof(ret->name) && len - name <= sizeof(ret->type));
	*ret = (struct field){.optional = memchr(at, '?', len) != NULL, .nullable = memchr(at, '~', len) != NULL};
	memcpy(ret->name, at, name);
	type = len - name - 1 - ret->optional - ret->nullable;
	memcpy(ret->type, at + name + 1, type);
	return true;
}

static const char *
format_of(const char *type)
{
	static const char *const known[][2] = {
		{"text", "\"type\":\"string\""},
		{"time", "\"type\":\"string\",\"format\":\"date-time\""},
		{"day", "\"type\":\"string\",\"format\":\"date\""},
		{"decimal", "\"type\":\"string\",\"pattern\":\"^-?[0-9]+(\\\\.[0-9]+)?$\""},
		{"int", "\"type\":\"integer\",\"format\":\"int64\""},
		{"bool", "\"type\":\"boolean\""},
		{"any", ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (strcmp(known[i][0], type) == 0)
			return known[i][1];
	return NULL;
}

static void
write_type(const char *type, struct buf *out)
{
	const char *format = format_of(type);
	size_t n = strlen(type);

	if (format != NULL)
		buf_printf(out, "{%s}", format);
	else if (type[0] == '[')
		buf_printf(out, "{\"type\":\"array\",\"items\":{\"$ref\":\"#/components/schemas/%.*s\"}}", (int)n - 2,
		           type + 1);
	else
		buf_printf(out, "{\"$ref\":\"#/components/schemas/%s\"}", type);
}

static void
write_schema(const struct schema *s, struct buf *out)
{
	const char *line = s->fields, *comma = "";
	struct field f;

	buf_printf(out, "\"%s\":{\"type\":\"object\",\"properties\":{", s->name);
	for (; next_field(&line, &f); comma = ",") {
		buf_printf(out, "%s\"%s\":", comma, f.name);
		if (f.nullable)
			buf_str(out, "{\"anyOf\":[");
		write_type(f.type, out);
		if (f.nullable)
			buf_str(out, ",{\"type\":\"null\"}]}");
	}
	buf_str(out, "},\"required\":[");
	for (line = s->fields, comma = ""; next_field(&line, &f);)
		if (!f.optional) {
			buf_printf(out, "%s\"%s\"", comma, f.name);
			comma = ",";
		}
	buf_char(out, ']');
	if (s->rest != NULL) {
		buf_str(out, ",\"additionalProperties\":");
		write_type(s->rest, out);
	}
	buf_char(out, '}');
}

/* ---- operations ---- */

static void
write_parameters(const struct door *d, struct buf *out)
{
	const char *places[] = {"path", "query"}, *lines[] = {d->tail, d->query}, *comma = "";
	struct field f;

	buf_str(out, ",\"parameters\":[");
	for (size_t i = 0; i < ARRAY_LEN(lines); i++)
		for (const char *line = lines[i]; line != NULL && next_field(&line, &f); comma = ",") {
			buf_printf(out, "%s{\"name\":\"%s\",\"in\":\"%s\",\"required\":%s,\"schema\":", comma, f.name,
			           places[i], f.optional ? "false" : "true");
			write_type(f.type, out);
			buf_char(out, '}');
		}
	buf_char(out, ']');
}

static void
write_content(const char *type, const char *schema, const char *other, const char *other_schema, struct buf *out)
{
	buf_printf(out, "\"content\":{\"%s\":{\"schema\":", type);
	write_type(schema != NULL ? schema : "text", out);
	buf_char(out, '}');
	if (other != NULL) {
		buf_printf(out, ",\"%s\":{\"schema\":", other);
		write_type(other_schema != NULL ? other_schema : "text", out);
		buf_char(out, '}');
	}
	buf_char(out, '}');
}

static bool
tells_tenants_apart(const struct door *d)
{
	static const char tenant[] = "tenant:";

	for (const char *at = d->query; at != NULL && *at != '\0'; at += strspn(at, " ")) {
		if (strncmp(at, tenant, sizeof(tenant) - 1) == 0)
			return true;
		at += strcspn(at, " ");
	}
	return false;
}

/* Rules, by kind of route:
 *  1. any: 400, 413, 415, 429, 500, 503, from the server before the handler or from a failing database
 *  2. with roles: 401 and 403; open to all, a token that is shown must still be good: 401, but inline nobody looks
 *  3. something named in the path or a tenant asked for: 404
 *  4. what its row says */
static void
write_replies(const struct http_route *r, const struct door *d, struct buf *out)
{
	static const int any[] = {400, 413, 415, 429, 500, 503};
	bool guarded = r->roles != ROLE_NONE_NEEDED;
	int more[8], n = 0;

	if (guarded || (r->where & HTTP_INLINE) == 0 || strcmp(r->path, "/metrics") == 0)
		more[n++] = 401;
	if (guarded)
		more[n++] = 403;
	if (d->tail != NULL || tells_tenants_apart(d))
		more[n++] = 404;
	for (size_t i = 0; i < ARRAY_LEN(d->errors) && d->errors[i] != 0; i++)
		more[n++] = d->errors[i];
	buf_printf(out, ",\"responses\":{\"%d\":{\"description\":\"done\",", d->status != 0 ? d->status : 200);
	write_content(d->reply_type != NULL ? d->reply_type : JSON, d->reply, d->other_type, NULL, out);
	buf_char(out, '}');
	if (d->partly != 0) {
		buf_printf(out, ",\"%d\":{\"description\":\"done in part\",", d->partly);
		write_content(d->reply_type, d->reply, NULL, NULL, out);
		buf_char(out, '}');
	}
	for (size_t i = 0; i < ARRAY_LEN(any); i++)
		buf_printf(out, ",\"%d\":{\"$ref\":\"#/components/responses/Problem\"}", any[i]);
	for (int i = 0; i < n; i++)
		buf_printf(out, ",\"%d\":{\"$ref\":\"#/components/responses/Problem\"}", more[i]);
	buf_char(out, '}');
}

static void
write_security(const struct http_route *r, struct buf *out)
{
	const char *comma = "";

	if (r->roles == TAKES_JOIN_TOKEN) {
		buf_str(out, ",\"security\":[{\"joinToken\":[]}],\"x-tollgate-roles\":[]");
		return;
	}
	if (r->roles == ROLE_NONE_NEEDED) {
		/* /metrics shows more to a token */
		buf_str(out,
		        strcmp(r->path, "/metrics") == 0 ? ",\"security\":[{},{\"token\":[]}]" : ",\"security\":[]");
		return;
	}
	buf_str(out, ",\"security\":[{\"token\":[]}],\"x-tollgate-roles\":[");
	for (uint32_t role = 1; role <= ROLE_LAST; role <<= 1)
		if ((r->roles & role) != 0) {
			buf_printf(out, "%s\"%s\"", comma, role_name(role));
			comma = ",";
		}
	buf_char(out, ']');
}

/* Whether the list that a thing is in has a route with the same method. */
static bool
has_list(const struct http_route *r)
{
	size_t n = strlen(r->path) - 1;

	for (size_t i = 0; i < api_route_count; i++)
		if (strcmp(api_routes[i].method, r->method) == 0 && strlen(api_routes[i].path) == n &&
		    strncmp(api_routes[i].path, r->path, n) == 0)
			return true;
	return false;
}

/* A name for generators of clients: get_v1_reports, get_v1_quarantine_seq, get_v1_decisions_id. */
static void
write_operation_id(const struct http_route *r, const struct door *d, struct buf *out)
{
	const char *line = d->tail;
	struct field f = {0};

	buf_str(out, "\"operationId\":\"");
	for (const char *p = r->method; *p != '\0'; p++)
		buf_char(out, (char)(*p | 0x20));
	for (const char *p = r->path; *p != '\0'; p++)
		if (*p != '/' || p[1] != '\0')
			buf_char(out, *p == '/' || *p == '-' || *p == '.' ? '_' : *p);
	for (bool several = has_list(r); line != NULL && next_field(&line, &f); several = true)
		if (several && line[0] == '\0')
			buf_printf(out, "_%s", f.name);
	buf_char(out, '"');
}

static void
write_operation(const struct http_route *r, const struct door *d, struct buf *out)
{
	buf_char(out, '"');
	for (const char *p = r->method; *p != '\0'; p++)
		buf_char(out, (char)(*p | 0x20));
	buf_str(out, "\":{");
	write_operation_id(r, d, out);
	buf_str(out, ",\"summary\":");
	json_write_string(r->summary, out);
	write_parameters(d, out);
	if (d->body_type != NULL) {
		buf_str(out, ",\"requestBody\":{\"required\":true,");
		write_content(d->body_type, d->body, d->other_body_type, d->other_body, out);
		buf_char(out, '}');
	}
	write_replies(r, d, out);
	write_security(r, out);
	buf_char(out, '}');
}

static const struct door *
door_of(const struct http_route *r)
{
	static const struct door plain = {0};

	for (size_t i = 0; i < ARRAY_LEN(doors); i++)
		if (strcmp(doors[i].method, r->method) == 0 && strcmp(doors[i].path, r->path) == 0)
			return &doors[i];
	return &plain;
}

static void
write_path(const struct http_route *r, struct buf *out)
{
	const struct door *d = door_of(r);
	const char *line = d->tail, *slash = "";
	struct field f;

	buf_printf(out, "\"%s", r->path);
	for (; line != NULL && next_field(&line, &f); slash = "/")
		buf_printf(out, "%s{%s}", slash, f.name);
	buf_str(out, "\":{");
}

/* One path of the document: two methods may want different things behind the same prefix. */
static bool
same_path(const struct http_route *a, const struct http_route *b)
{
	const char *x = door_of(a)->tail, *y = door_of(b)->tail;

	return strcmp(a->path, b->path) == 0 && strcmp(x != NULL ? x : "", y != NULL ? y : "") == 0;
}

static void
write_paths(const struct http_route *routes, size_t count, struct buf *out)
{
	const char *comma = "";

	for (size_t i = 0; i < count; i++) {
		bool first = true;

		for (size_t k = 0; k < i; k++)
			first = first && !same_path(&routes[k], &routes[i]);
		if (!first)
			continue;
		buf_str(out, comma);
		comma = ",\n";
		write_path(&routes[i], out);
		for (size_t k = i; k < count; k++)
			if (same_path(&routes[k], &routes[i])) {
				buf_str(out, k > i ? "," : "");
				write_operation(&routes[k], door_of(&routes[k]), out);
			}
		buf_char(out, '}');
	}
}

/* Open to all: it is the same for everybody and says nothing that the manual does not. */
void
handle_openapi(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct buf *out = &rp->body;

	(void)app;
	(void)worker;
	(void)rq;
	rp->content_type = JSON;
	buf_str(out,
	        "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Tollgate\",\"version\":\"" TOLLGATE_VERSION
	        "\",\"description\":\"Usage, cost and policy of a shared GPU cluster. Quantities and money are decimals "
	        "in text, never binary fractions.\"},\"paths\":{\n");
	write_paths(api_routes, api_route_count, out);
	buf_str(out,
	        "},\n\"components\":{\"securitySchemes\":{"
	        "\"token\":{\"type\":\"http\",\"scheme\":\"bearer\",\"description\":\"x-tollgate-roles of an operation says "
	        "which roles may use it\"},"
	        "\"joinToken\":{\"type\":\"http\",\"scheme\":\"bearer\",\"description\":\"a join token, used once\"}},\n"
	        "\"responses\":{\"Problem\":{\"description\":\"RFC 9457: what is wrong, in words\",\"content\":"
	        "{\"application/problem+json\":{\"schema\":{\"$ref\":\"#/components/schemas/Problem\"}}}}},\n"
	        "\"schemas\":{");
	for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
		buf_str(out, i > 0 ? ",\n" : "\n");
		write_schema(&schemas[i], out);
	}
	buf_str(out, "}}}\n");
}
