/* aggregator/core/rating/shared_cost.c - idle time of shared nodes, divided among tenants. The numbers are those of shared_cost.h. */
#include "aggregator/core/rating/shared_cost.h"

#include <string.h>

#include "common/base/apportion.h"
#include "common/base/units.h"

static int64_t
declared_weight(const struct rating_book *book, const char *tenant)
{
	for (size_t i = 0; i < book->weight_count; i++)
		if (strcmp(book->weights[i].tenant, tenant) == 0)
			return book->weights[i].weight;
	return 0;
}

static int128
weight_of(const struct rating_book *book, const struct shared_tenant *p)
{
	switch (book->shared_idle) {
	case SHARED_NONE: break;
	case SHARED_EVEN: return p->held_unit_ns > 0;
	case SHARED_PROPORTIONAL: return p->held_unit_ns;
	case SHARED_WEIGHTS: return declared_weight(book, p->tenant);
	}
	return 0;
}

size_t
shared_cost_rows(const struct rating_book *book, const struct shared_pool *pool, const struct shared_tenant *tenants,
                 size_t n, struct usage_day *out)
{
	owned(mem) int128 *weights = mem_array(n, sizeof(*weights));
	owned(mem) int128 *parts = mem_array(n, sizeof(*parts));
	owned(mem) int128 *ratios = mem_array(n, sizeof(*ratios));
	size_t count = 0;

	for (size_t i = 0; i < n; i++)
		weights[i] = weight_of(book, &tenants[i]);
	if (!apportion(pool->idle_unit_ns, weights, n, parts) || !apportion(RATIO_ONE, parts, n, ratios))
		return 0;
	for (size_t i = 0; i < n; i++)
		if (parts[i] > 0)
			out[count++] = (struct usage_day){.day = pool->day,
			                                  .kind = CHARGE_SHARED,
			                                  .cluster = pool->cluster,
			                                  .tenant = tenants[i].tenant,
			                                  .cost_center = tenants[i].cost_center,
			                                  .workspace = "",
			                                  .gpu_model = pool->gpu_model,
			                                  .mig_profile = "",
			                                  .sharing_mode = "",
			                                  .klass = "",
			                                  .instance_units = UNITS_PER_GPU,
			                                  .price_book = pool->price_book,
			                                  .unit_ns = parts[i],
			                                  .origin_unit_ns = pool->idle_unit_ns,
			                                  .origin_ratio = (int64_t)ratios[i]};
	return count;
}
