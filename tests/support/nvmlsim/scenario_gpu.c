/* tests/support/nvmlsim/scenario_gpu.c - the GPUs of a scenario: what they are and what is scripted of them. */
#include "tests/support/nvmlsim/sim_scenario_read.h"

#include <stdio.h>
#include <string.h>

static const char *const key_names[KEY_COUNT] = {
	[KEY_ACTIVE] = "active",
	[KEY_MEMORY_ACTIVE] = "memory_active",
	[KEY_POWER_MW] = "power_mw",
	[KEY_ENERGY_MJ] = "energy_mj",
	[KEY_POWER_LIMIT_MW] = "power_limit_mw",
	[KEY_TEMPERATURE_C] = "temperature_c",
	[KEY_MEMORY_TEMPERATURE_C] = "memory_temperature_c",
	[KEY_GRAPHICS_CLOCK_MHZ] = "graphics_clock_mhz",
	[KEY_SM_CLOCK_MHZ] = "sm_clock_mhz",
	[KEY_MEMORY_CLOCK_MHZ] = "memory_clock_mhz",
	[KEY_VIDEO_CLOCK_MHZ] = "video_clock_mhz",
	[KEY_THROTTLE_REASONS] = "throttle_reasons",
	[KEY_ENCODER] = "encoder",
	[KEY_DECODER] = "decoder",
	[KEY_MEMORY_USED_BYTES] = "memory_used_bytes",
	[KEY_MEMORY_RESERVED_BYTES] = "memory_reserved_bytes",
	[KEY_MEMORY_BYTES] = "memory_bytes",
	[KEY_ECC_CORRECTED] = "ecc_corrected",
	[KEY_ECC_UNCORRECTED] = "ecc_uncorrected",
	[KEY_REMAPPED_CORRECTED] = "remapped_corrected",
	[KEY_REMAPPED_UNCORRECTED] = "remapped_uncorrected",
	[KEY_REMAP_PENDING] = "remap_pending",
	[KEY_REMAP_FAILED] = "remap_failed",
	[KEY_PCIE_TX_BYTES_PER_S] = "pcie_tx_bytes_per_s",
	[KEY_PCIE_RX_BYTES_PER_S] = "pcie_rx_bytes_per_s",
	[KEY_PCIE_REPLAYS] = "pcie_replays",
	[KEY_PCIE_GENERATION] = "pcie_generation",
	[KEY_PCIE_WIDTH] = "pcie_width",
	[KEY_NVLINK_TX_BYTES] = "nvlink_tx_bytes",
	[KEY_NVLINK_RX_BYTES] = "nvlink_rx_bytes",
	[KEY_ENGINE_ACTIVE_PPM] = "engine_active_ppm",
	[KEY_SM_ACTIVE_PPM] = "sm_active_ppm",
	[KEY_SM_OCCUPANCY_PPM] = "sm_occupancy_ppm",
	[KEY_TENSOR_ACTIVE_PPM] = "tensor_active_ppm",
	[KEY_DRAM_ACTIVE_PPM] = "dram_active_ppm",
};

const char *
sim_key_name(enum sim_key key)
{
	return key_names[key];
}

const struct sim_series *
sim_series_of(const struct sim_gpu *g, enum sim_key key, int gi, int ci)
{
	for (size_t i = 0; i < g->series_count; i++)
		if (g->series[i].key == key && g->series[i].gi == gi && g->series[i].ci == ci)
			return &g->series[i];
	return NULL;
}

/* ---- readings ------------------------------------------------------------------------------------------------------- */

static struct sim_series *
make_series(struct sim_gpu *g, enum sim_key key, int gi, int ci)
{
	for (size_t i = 0; i < g->series_count; i++)
		if (g->series[i].key == key && g->series[i].gi == gi && g->series[i].ci == ci)
			return &g->series[i];
	g->series = mem_grow(g->series, g->series_count + 1, sizeof(*g->series));
	g->series[g->series_count] = (struct sim_series){.key = key, .gi = gi, .ci = ci};
	return &g->series[g->series_count++];
}

static void
add_point(struct sim_series *s, int64_t at_ns, int64_t value)
{
	if (s->count > 0 && s->points[s->count - 1].at_ns == at_ns) {
		s->points[s->count - 1].value = value;
		return;
	}
	if (s->count == s->cap) {
		s->cap = s->cap ? 2 * s->cap : 4;
		s->points = mem_grow(s->points, s->cap, sizeof(*s->points));
	}
	s->points[s->count++] = (struct sim_point){at_ns, value};
}

/* "@GI/CI": what follows is of that instance. Ids have one or two digits. */
static bool
word_instance(struct sim_word w, int *ret_gi, int *ret_ci)
{
	int parts[2] = {0, 0}, digits[2] = {0, 0}, part = 0;

	for (size_t i = 1; i < w.len; i++) {
		if (w.at[i] == '/' && part == 0) {
			part = 1;
		} else if (w.at[i] >= '0' && w.at[i] <= '9' && digits[part] < 2) {
			parts[part] = parts[part] * 10 + (w.at[i] - '0');
			digits[part]++;
		} else {
			return false;
		}
	}
	*ret_gi = parts[0];
	*ret_ci = parts[1];
	return digits[0] > 0 && digits[1] > 0;
}

static bool
take_reading(struct sim_gpu *g, struct sim_word w, int64_t at_ns, int gi, int ci, struct err *err)
{
	struct sim_series *series = NULL;
	struct sim_word key;
	int64_t value;

	if (!word_pair(w, &key, &value, err))
		return false;
	for (size_t i = 0; i < KEY_COUNT; i++)
		if (word_is(key, key_names[i]))
			series = make_series(g, (enum sim_key)i, gi, ci);
	if (!series)
		return err_set(err, ERR_INVALID, "\"%.*s\" is not known", key.len > 40 ? 40 : (int)key.len, key.at);
	if (series->count > 0 && series->points[series->count - 1].at_ns > at_ns)
		return err_set(err, ERR_INVALID, "readings are in order of their time");
	add_point(series, at_ns, value);
	return true;
}

/* "10s power_mw=300000 ecc_corrected=1 @1/0 engine_active_ppm=500000" */
static bool
read_reading(struct sim_gpu *g, const char *line, struct err *err)
{
	int gi = -1, ci = -1;
	struct sim_word w;
	int64_t at_ns;

	if (!next_word(&line, &w))
		return err_set(err, ERR_INVALID, "a reading begins with its time");
	if (!word_duration(w, &at_ns, err))
		return false;
	while (next_word(&line, &w)) {
		if (*w.at == '@') {
			if (!word_instance(w, &gi, &ci))
				return err_set(err, ERR_INVALID, "\"%.*s\" is not an instance like @1/0",
				               w.len > 40 ? 40 : (int)w.len, w.at);
		} else if (!take_reading(g, w, at_ns, gi, ci, err)) {
			return false;
		}
	}
	return true;
}

bool
read_readings(const struct reader *r, const struct yaml_node *map, struct sim_gpu *g)
{
	const struct yaml_node *list;
	struct err cause;

	if (!read_list(r, map, "readings", YAML_MAX_NODES, &list))
		return false;
	for (const struct yaml_node *n = list ? list->child : NULL; n; n = n->next) {
		if (!yaml_expect(r->doc, n, YAML_SCALAR, "a reading", r->err))
			return false;
		if (!read_reading(g, n->text, &cause))
			return yaml_err(r->doc, n, r->err, "readings: %s", cause.text);
	}
	return true;
}

/* ---- what a model has ----------------------------------------------------------------------------------------------- */

static bool
has_word(const char *model, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = model; (p = strstr(p, word)); p++) {
		char before = p == model ? ' ' : p[-1], after = p[len];

		if ((before == ' ' || before == '-') && (after == ' ' || after == '-' || after == '\0'))
			return true;
	}
	return false;
}

/* Volta is the first with an energy counter, Ampere with row remapping, Hopper with GPM; consumer boards have no ECC. */
static void
set_traits(struct sim_gpu *g)
{
	static const struct {
		const char *word;
		bool gpm, ecc, row_remap, energy;
		int nvlinks;
	} models[] = {
		{"P100", false, true, false, false, 4}, {"V100", false, true, false, true, 6},
		{"T4", false, true, false, true, 0},    {"A100", false, true, true, true, 12},
		{"A800", false, true, true, true, 8},   {"A30", false, true, true, true, 4},
		{"A10", false, true, true, true, 0},    {"A40", false, true, true, true, 4},
		{"L4", false, true, true, true, 0},     {"L40", false, true, true, true, 0},
		{"L40S", false, true, true, true, 0},   {"H100", true, true, true, true, 18},
		{"H800", true, true, true, true, 8},    {"H20", true, true, true, true, 18},
		{"H200", true, true, true, true, 18},   {"GH200", true, true, true, true, 18},
		{"B200", true, true, true, true, 18},   {"GB200", true, true, true, true, 18},
		{"B300", true, true, true, true, 18},   {"GB300", true, true, true, true, 18},
	};

	g->energy = true;
	g->samples = true;
	g->dcp = true;
	for (size_t i = 0; i < ARRAY_LEN(models); i++)
		if (has_word(g->model, models[i].word)) {
			g->gpm = models[i].gpm;
			g->ecc = models[i].ecc;
			g->row_remap = models[i].row_remap;
			g->energy = models[i].energy;
			g->nvlinks = models[i].nvlinks;
		}
	if (has_word(g->model, "Blackwell"))
		g->gpm = g->ecc = g->row_remap = true;
}

/* ---- a GPU ---------------------------------------------------------------------------------------------------------- */

static bool
read_one(const struct reader *r, const struct yaml_node *n, const char *model, struct sim_gpu *g)
{
	char words[2 * SIM_TEXT];

	snprintf(g->model, sizeof(g->model), "%s", model);
	snprintf(words, sizeof(words), "%.90s/%zu", r->sc->name, r->sc->gpu_count);
	sim_uuid("GPU", words, g->uuid);
	snprintf(g->pci, sizeof(g->pci), "00000000:%02X:00.0", (unsigned)(r->sc->gpu_count + 1) & 0xff);
	set_traits(g);
	g->mig_capable = mig_geometry_of(model, g->memory_mib, &g->geometry, NULL);
	return read_short(r, n, "uuid", g->uuid, sizeof(g->uuid)) && read_short(r, n, "pci", g->pci, sizeof(g->pci)) &&
	       read_flag(r, n, "gpm", &g->gpm) && read_flag(r, n, "ecc", &g->ecc) &&
	       read_flag(r, n, "row_remap", &g->row_remap) && read_flag(r, n, "energy", &g->energy) &&
	       read_flag(r, n, "samples", &g->samples) && read_flag(r, n, "dcp", &g->dcp) &&
	       read_int(r, n, "nvlinks", 0, 64, &g->nvlinks) && read_flag(r, n, "accounting", &g->accounting) &&
	       read_layouts(r, n, g) && read_readings(r, n, g);
}

bool
read_gpu(const struct reader *r, const struct yaml_node *n)
{
	static const char *const keys[] = {"model",       "count",     "uuid",    "pci",        "memory_mib",
	                                   "idle_watts",  "max_watts", "gpm",     "ecc",        "energy",
	                                   "samples",     "row_remap", "nvlinks", "accounting", "mig",
	                                   "repartition", "readings",  "dcp",     NULL};
	int64_t count = 1, memory_mib, idle = 50, max = 400;
	const char *model;

	if (!yaml_expect(r->doc, n, YAML_MAP, "a GPU", r->err) || !yaml_only_keys(r->doc, n, keys, r->err) ||
	    !yaml_str(r->doc, n, "model", &model, r->err) || !read_int(r, n, "count", 1, SIM_GPUS_MAX, &count) ||
	    !yaml_i64(r->doc, n, "memory_mib", 1, 1 << 24, &memory_mib, r->err) ||
	    !read_int(r, n, "idle_watts", 0, 5000, &idle) || !read_int(r, n, "max_watts", 0, 5000, &max))
		return false;
	if (strlen(model) >= SIM_TEXT)
		return yaml_err(r->doc, n, r->err, "model has %zu characters, at most %d are allowed", strlen(model),
		                SIM_TEXT - 1);
	if (max < idle)
		return yaml_err(r->doc, n, r->err, "max_watts %" PRId64 " is below idle_watts %" PRId64, max, idle);
	if ((yaml_get(n, "uuid") || yaml_get(n, "pci")) && count != 1)
		return yaml_err(r->doc, n, r->err, "a uuid belongs to one GPU, and count is %" PRId64, count);
	if (r->sc->gpu_count + (size_t)count > SIM_GPUS_MAX)
		return yaml_err(r->doc, n, r->err, "more than %d GPUs", SIM_GPUS_MAX);
	for (int64_t i = 0; i < count; i++) {
		struct sim_gpu *g = &r->sc->gpus[r->sc->gpu_count];
		bool ok;

		*g = (struct sim_gpu){.memory_mib = memory_mib, .idle_mw = idle * 1000, .max_mw = max * 1000};
		ok = read_one(r, n, model, g);
		r->sc->gpu_count++; /* also when it is refused: what it has is freed with the others */
		if (!ok)
			return false;
	}
	return true;
}
