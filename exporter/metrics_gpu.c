/* exporter/metrics_gpu.c - GPUs and MIG instances on /metrics. What the driver does not have is left out, never zero. */
#include <string.h>

#include "exporter/metrics_render.h"

struct value_family {
	const char *name;
	enum prom_type type;
	const char *help;
	size_t offset; /* of the int64_t in struct gpu_reading or gpu_instance */
	int decimals;
};

static const struct value_family gpu_families[] = {
	{"tollgate_gpu_utilization_ratio", PROM_GAUGE, "Share of time in which a kernel was running.",
         offsetof(struct gpu_reading, active_ppm), 6},
	{"tollgate_gpu_memory_used_bytes", PROM_GAUGE, "Memory in use.",
         offsetof(struct gpu_reading, memory_used_bytes), 0},
	{"tollgate_gpu_memory_total_bytes", PROM_GAUGE, "Memory of the GPU.",
         offsetof(struct gpu_reading, memory_bytes), 0},
	{"tollgate_gpu_power_watts", PROM_GAUGE, "Power drawn by the board.", offsetof(struct gpu_reading, power_mw),
         3},
	{"tollgate_gpu_energy_joules_total", PROM_COUNTER, "Energy used by the board since the driver was loaded.",
         offsetof(struct gpu_reading, energy_mj), 3},
	{"tollgate_gpu_temperature_celsius", PROM_GAUGE, "Temperature of the GPU.",
         offsetof(struct gpu_reading, temperature_c), 0},
};

static const struct value_family instance_families[] = {
	{"tollgate_mig_memory_used_bytes", PROM_GAUGE, "Memory in use in the instance.",
         offsetof(struct gpu_instance, memory_used_bytes), 0},
	{"tollgate_mig_memory_total_bytes", PROM_GAUGE, "Memory of the instance.",
         offsetof(struct gpu_instance, memory_bytes), 0},
	{"tollgate_mig_engine_active_ratio", PROM_GAUGE, "Share of time in which a kernel was running in the instance.",
         offsetof(struct gpu_instance, active_ppm), 6},
};

static int64_t
value_at(const void *thing, size_t offset)
{
	int64_t v;

	memcpy(&v, (const char *)thing + offset, sizeof(v));
	return v;
}

static void
render_gpu_info(struct render *r)
{
	struct prom *p = &r->p;

	render_family(r, "tollgate_gpu_info", PROM_GAUGE,
	              "A GPU of this node: its product name, address and MIG mode.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(r, i);
		struct prom_set set;

		if (!render_sample(r, i, 0, 1, 0))
			continue;
		set = label_sets_get(&r->gpus, i);
		prom_begin(p);
		prom_labels(p, &set);
		prom_label(p, "product", g->model);
		prom_label(p, "pci", g->pci);
		prom_label(p, "mig", g->mig ? "on" : "off");
		prom_int(p, 1);
		render_close(r);
	}
	render_family(r, "tollgate_gpu_up", PROM_GAUGE, "1 when the GPU answers, 0 when it is lost or in error.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		bool up = !render_reading(r, i)->down;

		if (render_sample(r, i, 0, up, 0))
			render_gpu_line(r, i, NULL, up, 0);
	}
}

/* `family` NULL: tollgate_mig_info. */
static void
render_instances(struct render *r, const struct value_family *family)
{
	size_t n = 0;

	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < render_reading(r, i)->instance_count; k++, n++) {
			int64_t v = family ? value_at(&render_reading(r, i)->instances[k], family->offset) : 1;
			int decimals = family ? family->decimals : 0;

			if (v != ABSENT && render_sample(r, n, 0, v, decimals)) {
				struct prom_set set = label_sets_get(&r->instances, n);

				render_gpu_line(r, i, &set, v, decimals);
			}
		}
}

void
render_gpus(struct render *r)
{
	render_gpu_info(r);
	for (size_t f = 0; f < ARRAY_LEN(gpu_families); f++) {
		const struct value_family *family = &gpu_families[f];

		render_family(r, family->name, family->type, family->help);
		for (size_t i = 0; i < r->gpu_count; i++) {
			int64_t v = value_at(render_reading(r, i), family->offset);

			if (v != ABSENT && !render_reading(r, i)->down && render_sample(r, i, 0, v, family->decimals))
				render_gpu_line(r, i, NULL, v, family->decimals);
		}
	}
	render_family(r, "tollgate_mig_info", PROM_GAUGE, "A MIG compute instance of a GPU of this node.");
	render_instances(r, NULL);
	for (size_t f = 0; f < ARRAY_LEN(instance_families); f++) {
		const struct value_family *family = &instance_families[f];

		render_family(r, family->name, family->type, family->help);
		render_instances(r, family);
	}
}
