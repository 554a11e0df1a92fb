/* Files that say which job has which GPUs: what is in them, and whose they must be to be believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/time.h"
#include "exporter/identity/slurm_map.h"

/* ---- texts ---- */

static void
a_job_file_tells_all_there_is(void **state)
{
	const char text[] =
		"# written by the prolog\njob=4711\nsluid=sEKNKTV3WPV500\naccount=physics\nuser=alice\nuid=1000\npartition=gpu\n"
		"gpus=GPU-a,1,,MIG-b\nstart=1763280000.250000001\nlater=unknown\n\n";
	struct slurm_job j;
	struct err err;

	(void)state;
	assert_true(slurm_job_parse(text, strlen(text), &j, &err));
	assert_string_equal(j.job, "4711");
	assert_string_equal(j.sluid, "sEKNKTV3WPV500");
	assert_string_equal(j.account, "physics");
	assert_string_equal(j.user, "alice");
	assert_string_equal(j.partition, "gpu");
	assert_int_equal(j.uid, 1000);
	assert_int_equal(j.start_wall_ns, INT64_C(1763280000250000001));
	assert_int_equal(j.gpu_count, 3);
	assert_string_equal(j.gpus[0], "GPU-a");
	assert_string_equal(j.gpus[1], "1");
	assert_string_equal(j.gpus[2], "MIG-b");
	slurm_job_fini(&j);
}

static void
a_job_file_needs_only_the_number(void **state)
{
	const char text[] = "job=1\nsluid=\naccount=\ngpus=\nuid=\nstart=";
	struct slurm_job j;
	struct err err;

	(void)state;
	assert_true(slurm_job_parse(text, strlen(text), &j, &err));
	assert_string_equal(j.sluid, "");
	assert_string_equal(j.account, "");
	assert_int_equal(j.uid, -1);
	assert_int_equal(j.start_wall_ns, -1);
	assert_int_equal(j.gpu_count, 0);
	slurm_job_fini(&j);
}

struct bad_row {
	const char *name, *text, *part; /* of the error */
};

static const struct bad_row bad_rows[] = {
	{"nothing", "", "no job="},
	{"no number", "account=physics\n", "no job="},
	{"a number that is none", "job=47x\n", "line 1: job"},
	{"an empty number", "job=\n", "line 1: job"},
	{"a number that would climb out of the folder", "job=../1\n", "line 1: job"},
	{"a SLUID that is a number", "job=1\nsluid=4711\n", "line 2: sluid"},
	{"a SLUID with a letter that it cannot have", "job=1\nsluid=sEKNKTV3WPVU00\n", "line 2: sluid"},
	{"no equals sign", "job=1\nphysics\n", "line 2"},
	{"a control character", "job=1\naccount=phy\x1b[2Jsics\n", "line 2: account"},
	{"not UTF-8", "job=1\nuser=al\xffice\n", "line 2: user"},
	{"a uid that is none", "job=1\nuid=alice\n", "line 2: uid"},
	{"a negative uid", "job=1\nuid=-1\n", "line 2: uid"},
	{"a uid beyond 32 bits", "job=1\nuid=4294967296\n", "line 2: uid"},
	{"a time that is none", "job=1\nstart=now\n", "line 2: start"},
	{"a time with two points", "job=1\nstart=1.2.3\n", "line 2: start"},
	{"a time beyond all times", "job=1\nstart=99999999999999999999\n", "line 2: start"},
	{"a GPU with a control character", "job=1\ngpus=0,\x01\n", "line 2: gpus"},
};

static void
a_job_file_that_is_wrong_is_refused_with_its_line(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad_rows); i++) {
		struct slurm_job j;
		struct err err;

		if (slurm_job_parse(bad_rows[i].text, strlen(bad_rows[i].text), &j, &err))
			fail_msg("%s: accepted", bad_rows[i].name);
		if (err.kind != ERR_INVALID || !strstr(err.text, bad_rows[i].part))
			fail_msg("%s: %s", bad_rows[i].name, err.text);
	}
}

static void
a_nul_byte_is_refused(void **state)
{
	struct slurm_job j;
	struct hpc_gpu g;
	struct err err;

	(void)state;
	assert_false(slurm_job_parse("job=1\0user=root", 15, &j, &err));
	assert_false(hpc_gpu_parse("0",
	                           "1\0"
	                           "2",
	                           3, &g, &err));
}

static void
a_file_of_an_hpc_mapping_has_a_job_per_line(void **state)
{
	struct hpc_gpu g;
	struct err err;

	(void)state;
	assert_true(hpc_gpu_parse("3.7", " 4711 \r\n\njob-b\n", 15, &g, &err));
	assert_string_equal(g.gpu, "3");
	assert_int_equal(g.gi, 7);
	assert_int_equal(g.job_count, 2);
	assert_string_equal(g.jobs[0], "4711");
	assert_string_equal(g.jobs[1], "job-b");
	hpc_gpu_fini(&g);
	assert_true(hpc_gpu_parse("GPU-a", "", 0, &g, &err));
	assert_int_equal(g.gi, -1);
	assert_int_equal(g.job_count, 0);
	hpc_gpu_fini(&g);
	assert_false(hpc_gpu_parse("3.x", "1", 1, &g, &err));
	assert_false(hpc_gpu_parse(".1", "1", 1, &g, &err));
	assert_false(hpc_gpu_parse("3", "a\x01", 2, &g, &err));
}

/* ---- folders ---- */

struct folders {
	char root[64];
	char *slurm, *hpc;
	struct slurm_map map;
};

static void
folders_init(struct folders *f)
{
	snprintf(f->root, sizeof(f->root), "/tmp/tollgate-slurm-XXXXXX");
	assert_non_null(mkdtemp(f->root));
	f->slurm = mem_printf("%s/slurm", f->root);
	f->hpc = mem_printf("%s/hpc", f->root);
	assert_int_equal(mkdir(f->slurm, 0755), 0);
	assert_int_equal(mkdir(f->hpc, 0755), 0);
	slurm_map_init(&f->map,
	               &(struct slurm_map_options){.slurm_dir = f->slurm, .hpc_dir = f->hpc, .owner_uid = geteuid()});
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void
folders_fini(struct folders *f)
{
	slurm_map_fini(&f->map);
	(void)nftw(f->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	mem_free(f->slurm);
	mem_free(f->hpc);
}

static void
put(const char *dir, const char *name, const char *text)
{
	owned(mem) char *path = mem_printf("%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void
set_mode(const char *dir, const char *name, mode_t mode)
{
	owned(mem) char *path = name ? mem_printf("%s/%s", dir, name) : mem_strdup(dir);

	assert_int_equal(chmod(path, mode), 0);
}

/* Long after all that was written. */
static bool
refresh_later(struct folders *f)
{
	return slurm_map_refresh(&f->map, time_wall_ns() + NS_PER_HOUR);
}

static void
jobs_come_and_go_with_their_files(void **state)
{
	in_place(folders) struct folders f;

	(void)state;
	folders_init(&f);
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.job_count, 0);
	assert_false(refresh_later(&f));
	put(f.slurm, "4711", "job=4711\naccount=physics\ngpus=0,1\n");
	put(f.slurm, ".4712.new", "job=4712\n"); /* still being written */
	put(f.hpc, "2", "4713\n");
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.refused, 0);
	assert_int_equal(f.map.job_count, 1);
	assert_string_equal(f.map.jobs[0].account, "physics");
	assert_int_equal(f.map.gpu_count, 1);
	assert_string_equal(f.map.gpus[0].jobs[0], "4713");
	assert_false(refresh_later(&f));
	owned(mem) char *path = mem_printf("%s/4711", f.slurm);

	assert_int_equal(unlink(path), 0);
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.job_count, 0);
	assert_int_equal(f.map.gpu_count, 1);
}

static void
a_change_within_the_same_moment_is_not_missed(void **state)
{
	in_place(folders) struct folders f;

	(void)state;
	folders_init(&f);
	/* same name, size and, as far as the file system tells, time */
	for (int i = 0; i < 50; i++) {
		owned(mem) char *job = mem_printf("%d", 10 + i);

		put(f.hpc, "0", job);
		assert_true(slurm_map_refresh(&f.map, time_wall_ns()));
		assert_string_equal(f.map.gpus[0].jobs[0], job);
	}
}

static void
folders_that_are_not_there_are_empty(void **state)
{
	struct slurm_map m;

	(void)state;
	slurm_map_init(&m, &(struct slurm_map_options){.slurm_dir = "/nonexistent/slurm"});
	assert_true(slurm_map_refresh(&m, 0));
	assert_int_equal(m.job_count + m.gpu_count + m.refused, 0);
	assert_false(slurm_map_refresh(&m, 0));
	slurm_map_fini(&m);
}

static void
what_others_may_write_is_refused(void **state)
{
	in_place(folders) struct folders f;

	(void)state;
	folders_init(&f);
	put(f.slurm, "1", "job=1\n");
	put(f.slurm, "2", "job=2\n");
	set_mode(f.slurm, "2", 0664);
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.job_count, 1);
	assert_string_equal(f.map.jobs[0].job, "1");
	assert_int_equal(f.map.refused, 1);
	assert_int_equal(f.map.trouble.kind, ERR_DENIED);
	assert_non_null(strstr(f.map.trouble.text, "/2 has mode 0664"));
	set_mode(f.slurm, "2", 0644);
	set_mode(f.slurm, NULL, 01777);
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.job_count, 0);
	assert_non_null(strstr(f.map.trouble.text, "slurm has mode 1777"));
	set_mode(f.slurm, NULL, 0755);
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.job_count, 2);
	assert_int_equal(f.map.trouble.kind, ERR_NONE);
}

static void
what_belongs_to_others_is_refused(void **state)
{
	in_place(folders) struct folders f;

	(void)state;
	folders_init(&f);
	if (geteuid() != 0) {
		print_message("skip: only root can give a file away\n");
		skip();
	}
	put(f.slurm, "1", "job=1\n");
	put(f.hpc, "0", "1\n");
	owned(mem) char *path = mem_printf("%s/1", f.slurm);

	assert_int_equal(chown(path, 12345, 0), 0);
	assert_int_equal(chown(f.hpc, 12345, 0), 0);
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.job_count + f.map.gpu_count, 0);
	assert_int_equal(f.map.refused, 2);
	assert_non_null(strstr(f.map.trouble.text, "belongs to uid 12345"));
	/* unless the options name who writes them */
	f.map.owner_uid = 12345;
	assert_int_equal(chown(path, 12345, 1), 0);
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.job_count + f.map.gpu_count, 2);
}

static void
links_pipes_and_giants_are_refused(void **state)
{
	in_place(folders) struct folders f;

	(void)state;
	folders_init(&f);
	owned(mem) char *outside = mem_printf("%s/outside", f.root);
	owned(mem) char *link = mem_printf("%s/1", f.slurm);
	owned(mem) char *fifo = mem_printf("%s/2", f.slurm);
	owned(mem) char *giant = mem_printf("%s/3", f.slurm);

	put(f.root, "outside", "job=1\n");
	assert_int_equal(symlink(outside, link), 0);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	put(f.slurm, "3", "job=3\n");
	assert_int_equal(truncate(giant, SLURM_FILE_MAX + 1), 0);
	put(f.slurm, "4", "job=5\n"); /* says it is another */
	assert_true(refresh_later(&f));
	assert_int_equal(f.map.job_count, 0);
	assert_int_equal(f.map.refused, 4);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_file_tells_all_there_is),
		cmocka_unit_test(a_job_file_needs_only_the_number),
		cmocka_unit_test(a_job_file_that_is_wrong_is_refused_with_its_line),
		cmocka_unit_test(a_nul_byte_is_refused),
		cmocka_unit_test(a_file_of_an_hpc_mapping_has_a_job_per_line),
		cmocka_unit_test(jobs_come_and_go_with_their_files),
		cmocka_unit_test(a_change_within_the_same_moment_is_not_missed),
		cmocka_unit_test(folders_that_are_not_there_are_empty),
		cmocka_unit_test(what_others_may_write_is_refused),
		cmocka_unit_test(what_belongs_to_others_is_refused),
		cmocka_unit_test(links_pipes_and_giants_are_refused),
	};

	return cmocka_run_group_tests_name("slurm_map", tests, NULL, NULL);
}
