/* aggregator/core/quota/engine/quantity.h - amounts of GPUs as written in policies, scenarios and requests.
 *
 *   4          whole GPUs                      3/7        a part of GPUs that is whole units (5040 per GPU)
 *   2x1g.10gb  instances of a MIG profile      none       unlimited
 *   {H100: 4, A100: 2x1g.10gb}                 one of these for each model
 *
 * The units of an instance depend on the model, so text becomes a quantity first and units when the model is known. */
#ifndef TOLLGATE_QUANTITY_H
#define TOLLGATE_QUANTITY_H

#include "common/base/units.h"
#include "common/conf/yaml.h"

#define QUANTITY_MAX_GPUS 1000000
#define QUANTITY_MAX_MODELS 16
#define QUANTITY_UNLIMITED INT64_MAX /* in units: "none" */

struct quantity {
	char model[64];   /* "": the only model there is */
	char profile[32]; /* "": whole GPUs or a part of them */
	bool unlimited;   /* then the rest is 0 */
	int64_t num, den; /* GPUs, or instances (den is 1) */
};

/* By model, in the order of the file; each model once. */
struct quantities {
	struct quantity at[QUANTITY_MAX_MODELS];
	size_t count;
};

/* One amount without its model. ERR_INVALID names the allowed forms. */
MUST_CHECK bool quantity_parse(const char *text, struct quantity *ret, struct err *err);

/* A scalar, or a map from model to scalar. */
MUST_CHECK bool quantity_read(const struct yaml_doc *doc, const struct yaml_node *n, struct quantities *ret,
                              struct err *err);

/* The amount for a model; NULL when none is given. An amount without a model is for every model. */
const struct quantity *quantity_for(const struct quantities *q, const char *model);

/* In units of a model. An amount that is no whole number of units, and a profile that the model does not have, are refused. */
MUST_CHECK bool quantity_units(const struct quantity *q, const char *model, int64_t *ret, struct err *err);

/* Whether a name stands for a model: it is the model's ("H100-80GB"), its family's ("H100"), or "", any. */
bool quantity_model_fits(const char *name, const char *model);
/* The model that a name stands for: the one of that name, or else the only one of that family. ERR_INVALID names those there are. */
MUST_CHECK bool quantity_model(const char *name, const char *const *models, size_t count, const char **ret,
                               struct err *err);

/* The units of one instance of a profile on a model: its short name ("H100-80GB"), a family ("H100": the memory that goes with
 * the profile), or "", a GPU of 7 compute and 8 memory slices. */
MUST_CHECK bool quantity_profile_units(const char *model, const char *profile, int64_t *ret, struct err *err);

/* Units as GPUs: "4", "135/1008", "none". */
#define QUANTITY_TEXT_SIZE 48
const char *quantity_text(int64_t units, char out[QUANTITY_TEXT_SIZE]);

#endif
