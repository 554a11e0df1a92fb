/* exporter/source/dcgm/dcgm_engine.c - DCGM's library, opened at run time, and its engine: a running one, or one inside this process. */
#include "exporter/source/dcgm/dcgm_engine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/time.h"

#define CONNECT_TIMEOUT_MS 3000

static const char *const default_libraries[] = {"libdcgm.so.4", "libdcgm.so.3"};

static const struct symbol {
	const char *name;
	size_t offset; /* in struct dcgm_api */
	bool required;
} symbols[] = {
#define REQUIRED_SYMBOL(ret, name, args) {#name, offsetof(struct dcgm_api, name), true},
#define OPTIONAL_SYMBOL(ret, name, args) {#name, offsetof(struct dcgm_api, name), false},
	DCGM_FUNCTIONS(REQUIRED_SYMBOL, OPTIONAL_SYMBOL)
#undef REQUIRED_SYMBOL
#undef OPTIONAL_SYMBOL
};

const char *
dcgm_status_text(const struct dcgm_engine *e, int status)
{
	const char *text = e->api.errorString ? e->api.errorString(status) : NULL;

	return text && *text ? text : "error without a name";
}

bool
dcgm_is_lost(int status)
{
	return status == DCST_CONNECTION_NOT_VALID || status == DCST_UNINITIALIZED;
}

/* ---- the library ---- */

static bool
load_symbols(struct dcgm_engine *e, const char *name, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
		void *symbol = dlsym(e->library, symbols[i].name);

		if (!symbol && symbols[i].required)
			return err_set(err, ERR_MISSING, "%s has no %s: it is not DCGM's library, or too old", name,
			               symbols[i].name);
		/* ISO C has no cast from an object pointer to a function */
		memcpy((char *)&e->api + symbols[i].offset, &symbol, sizeof(symbol));
	}
	e->simulated = dlsym(e->library, "tollgate_simulator") != NULL;
	return true;
}

static bool
load(struct dcgm_engine *e, const char *library, struct err *err)
{
	const char *name = library ? library : default_libraries[0];

	if (e->library)
		return true;
	e->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 1; !library && !e->library && i < ARRAY_LEN(default_libraries); i++) {
		name = default_libraries[i];
		e->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	}
	if (!e->library)
		return err_set(err, ERR_MISSING,
		               "DCGM's library cannot be loaded (%s): install DCGM, or name the library with "
		               "--dcgm-library",
		               dlerror());
	if (load_symbols(e, name, err))
		return true;
	dlclose(take(e->library));
	return false;
}

/* ---- the engine ---- */

static int
connect_to(struct dcgm_engine *e, const char *host)
{
	struct dcgm_connect params = {.version = DCGM_CONNECT_V2, .timeout_ms = CONNECT_TIMEOUT_MS};

	if (strncmp(host, "unix:", 5) == 0) {
		host += strncmp(host, "unix://", 7) == 0 ? 7 : 5;
		params.is_unix = 1;
	} else if (host[0] == '/') {
		params.is_unix = 1;
	}
	return e->api.dcgmConnect_v2(host, &params, &e->handle);
}

static int
embed(struct dcgm_engine *e)
{
	struct dcgm_embedded params = {.version = DCGM_EMBEDDED_V2,
	                               .mode = DCGM_MODE_MANUAL,
	                               .severity = DCGM_LOG_NONE};
	int status = e->api.dcgmStartEmbedded_v2(&params);

	e->handle = params.handle;
	e->embedded = true;
	return status;
}

/* An engine opens the GPUs for administration. To a user who may not, DCGM says "initialization error", or that it requires root. */
static bool
fail_embedded(const struct dcgm_engine *e, int status, struct err *err)
{
	if ((status == DCST_INIT_ERROR || status == DCST_REQUIRES_ROOT) && geteuid() != 0)
		return err_set(
			err, ERR_DENIED,
			"DCGM needs root for an engine in this process, which runs as uid %u (%s): start the exporter as root "
			"(--user leaves root once the engine runs), or name a running host engine with --dcgm-host",
			(unsigned)geteuid(), dcgm_status_text(e, status));
	return err_set(err, ERR_RETRY, "DCGM does not start an engine in this process: %s",
	               dcgm_status_text(e, status));
}

static bool
begin_engine(struct dcgm_engine *e, const char *host, struct err *err)
{
	int status = e->api.dcgmInit();

	if (status != DCST_OK)
		return err_set(err, ERR_RETRY, "DCGM's library does not start: %s", dcgm_status_text(e, status));
	e->initialised = true;
	status = host ? connect_to(e, host) : embed(e);
	e->connected = status == DCST_OK;
	if (e->connected)
		return true;
	if (host)
		return err_set(err, ERR_RETRY, "DCGM's host engine at %s does not answer: %s", host,
		               dcgm_status_text(e, status));
	return fail_embedded(e, status, err);
}

/* From "version:4.2.3;arch:x86_64;...". */
static void
read_version(struct dcgm_engine *e)
{
	struct dcgm_version_info info = {.version = DCGM_VERSION_INFO_V2};
	const char *at;

	snprintf(e->version, sizeof(e->version), "%s", "");
	if (!e->api.dcgmHostengineVersionInfo || e->api.dcgmHostengineVersionInfo(e->handle, &info) != DCST_OK)
		return;
	info.text[sizeof(info.text) - 1] = '\0';
	at = strstr(info.text, "version:");
	if (at)
		snprintf(e->version, sizeof(e->version), "%.*s", (int)strcspn(at + 8, ";"), at + 8);
}

bool
dcgm_engine_open(struct dcgm_engine *e, const struct dcgm_options *o, struct err *err)
{
	if (!load(e, o->library, err))
		return false;
	e->every_ns = o->sample_interval_ns;
	if (!e->view)
		e->view = mem_alloc(sizeof(*e->view));
	if (!e->spare)
		e->spare = mem_alloc(sizeof(*e->spare));
	if (!e->answers)
		e->answers = mem_array(DCGM_ANSWERS, sizeof(*e->answers));
	if (!begin_engine(e, o->host, err))
		return false;
	read_version(e);
	return dcgm_engine_look(e, 0, err);
}

void
dcgm_engine_close(struct dcgm_engine *e)
{
	if (e->connected)
		dcgm_engine_unwatch(e);
	if (e->connected)
		(void)(e->embedded ? e->api.dcgmStopEmbedded(e->handle) : e->api.dcgmDisconnect(e->handle));
	if (e->initialised)
		(void)e->api.dcgmShutdown();
	e->connected = e->initialised = e->embedded = false;
	e->watch_count = e->refused = 0;
	e->lacking.kind = ERR_NONE;
	if (e->view)
		e->view->gpu_count = e->view->count = 0;
}

void
dcgm_engine_fini(struct dcgm_engine *e)
{
	mem_free(take(e->view));
	mem_free(take(e->spare));
	mem_free(take(e->answers));
	if (e->library)
		dlclose(take(e->library));
}
