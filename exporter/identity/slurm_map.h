/* exporter/identity/slurm_map.h - which job has which GPUs, from files that root writes on the node when a job begins and removes when it
 * ends. Two kinds of folders are read:
 *
 *  - Slurm's, by our prolog (hooks/slurm): a file per job, named after its number, with lines of key=value. Keys: job (the
 *    number again), sluid (the other name of this run of the job, which its cgroup has from Slurm 26.05 on), account, user, uid,
 *    partition, gpus (UUIDs or indexes, with commas between), start (seconds since 1970, with decimals). All but job may be
 *    missing or empty; unknown keys are skipped
 *  - dcgm-exporter's HPC job mapping: a file per GPU, named <gpu> or <gpu>.<gpu instance>, with one job per line
 *
 * Anybody who can write these files decides who pays. So a folder or a file that does not belong to root (or to the user named in the
 * options), or that others may write to, is refused as a whole, and the refusal is reported. */
#ifndef TOLLGATE_SLURM_MAP_H
#define TOLLGATE_SLURM_MAP_H

#include "common/base/err.h"

#define SLURM_FILE_MAX 65536u /* bytes of one file */
#define SLURM_FILES_MAX 4096u /* of one folder */
#define SLURM_GPUS_MAX 256u   /* of one job; jobs of one GPU */

struct slurm_job {
	char *job, *sluid, *account, *user, *partition; /* empty: not given */
	int64_t uid;                                    /* -1: not given */
	int64_t start_wall_ns;                          /* -1: not given */
	char **gpus;                                    /* UUIDs or indexes, as written */
	size_t gpu_count;
};
void slurm_job_fini(struct slurm_job *j);
/* The text of one file of the prolog. ERR_INVALID with the line. */
MUST_CHECK bool slurm_job_parse(const char *text, size_t len, struct slurm_job *ret, struct err *err);

/* A GPU, or an instance of it, with the jobs that have it. */
struct hpc_gpu {
	char *gpu;  /* an index or a UUID */
	int32_t gi; /* -1: the whole GPU */
	char **jobs;
	size_t job_count;
};
void hpc_gpu_fini(struct hpc_gpu *g);
/* The name and the text of one file of an HPC job mapping. */
MUST_CHECK bool hpc_gpu_parse(const char *name, const char *text, size_t len, struct hpc_gpu *ret, struct err *err);

struct slurm_map_options {
	const char *slurm_dir; /* NULL: none */
	const char *hpc_dir;   /* NULL: none */
	int64_t owner_uid;     /* the user that may own them, besides root */
};
struct slurm_map {
	char *slurm_dir, *hpc_dir;
	int64_t owner_uid;
	struct slurm_job *jobs;
	size_t job_count;
	struct hpc_gpu *gpus;
	size_t gpu_count;
	size_t refused;     /* folders and files, at the last reading */
	struct err trouble; /* the first of them; kind ERR_NONE: none */
	uint64_t seen;      /* fingerprint of names, owners, sizes and times */
	int64_t newest_ns;  /* the last change that was seen */
};

void slurm_map_init(struct slurm_map *m, const struct slurm_map_options *o);
void slurm_map_fini(struct slurm_map *m);
/* Reads the folders if something changed in them; true when they were read. A missing folder counts as empty. A change less
 * than two seconds old is read again, because the time of a file is too coarse to tell two changes apart. */
bool slurm_map_refresh(struct slurm_map *m, int64_t wall_ns);

#endif
