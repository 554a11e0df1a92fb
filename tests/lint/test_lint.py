"""The lints find what they are for: each test plants one mistake in a small tree."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import abi  # noqa: E402
import abi_dcgm  # noqa: E402
import layers  # noqa: E402
import text  # noqa: E402
import tree  # noqa: E402


class Planted(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.put("common/base/buf.h", "")
        self.put("aggregator/core/quota/engine/quota.h", '#include "common/base/buf.h"\n')
        self.put("aggregator/store/store.h", '#include "aggregator/core/quota/engine/quota.h"\n')

    def put(self, path, content):
        file = Path(self.dir.name) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")

    def expect(self, findings, *starts):
        self.assertEqual(len(findings), len(starts), findings)
        for finding, start in zip(findings, starts):
            self.assertTrue(finding.startswith(start), f"{finding!r} does not start with {start!r}")


class Layers(Planted):
    def wrong(self, path, content, *starts):
        self.put(path, content)
        self.expect(layers.check(self.dir.name)[0], *starts)

    def test_a_sound_tree_has_no_finding(self):
        self.wrong("aggregator/main.c", '#include "aggregator/store/store.h"\n#include <stdio.h>\n')

    def test_common_includes_nobody(self):
        self.wrong("common/base/buf.c", '\n#include "aggregator/core/quota/engine/quota.h"\n', "common/base/buf.c:2: wrong arrow: common/base may not")

    def test_core_does_not_see_store(self):
        self.wrong("aggregator/core/quota/engine/quota.c", '#include "aggregator/store/store.h"\n', "aggregator/core/quota/engine/quota.c:1: wrong arrow")

    def test_exporter_does_not_see_the_aggregator(self):
        self.wrong("exporter/meter/meter.c", '#include "aggregator/core/quota/engine/quota.h"\n', "exporter/meter/meter.c:1: wrong arrow")

    def test_cli_does_not_see_store(self):
        self.wrong("aggregator/cli/main.c", '#include "aggregator/store/store.h"\n', "aggregator/cli/main.c:1: wrong arrow")

    def test_nobody_sees_tests(self):
        self.put("tests/support/harness/prop.h", "")
        self.wrong("common/base/buf.c", '#include "tests/support/harness/prop.h"\n', "common/base/buf.c:1: wrong arrow")

    def test_a_library_has_one_place(self):
        self.put("aggregator/store/db/db.c", "#include <libpq-fe.h>\n")
        self.wrong("aggregator/main.c", "#include <libpq-fe.h>\n", "aggregator/main.c:1: libpq-fe.h belongs to")

    def test_only_the_nvml_source_knows_the_abi(self):
        self.put("exporter/source/nvml/nvml_abi.h", "")
        self.put("exporter/source/nvml/nvml.c", '#include "exporter/source/nvml/nvml_abi.h"\n')
        self.wrong("exporter/main.c", '#include "exporter/source/nvml/nvml_abi.h"\n', "exporter/main.c:1: exporter/source/nvml/nvml_abi.h belongs to")

    def test_core_is_pure(self):
        self.wrong("aggregator/core/quota/engine/quota.c", "#include <unistd.h>\n", "aggregator/core/quota/engine/quota.c:1: core is pure")

    def test_store_does_not_log(self):
        self.put("common/base/log.h", "")
        self.wrong("aggregator/store/db/db.c", '#include "common/base/log.h"\n', "aggregator/store/db/db.c:1: aggregator/store/db returns errors")

    def test_an_include_is_named_from_the_root(self):
        self.wrong("common/base/buf.c", '#include "buf.h"\n', 'common/base/buf.c:1: "buf.h" is not a file')

    def test_the_table_marks_the_wrong_arrow(self):
        self.put("common/base/buf.c", '#include "aggregator/core/quota/engine/quota.h"\n')
        self.assertIn("core/quota/engine 1!", "\n".join(layers.check(self.dir.name)[1]))

    def test_a_room_sees_only_what_its_row_names(self):
        self.put("aggregator/core/reports/focus.h", "")
        self.wrong("aggregator/core/rating/rating.c", '#include "aggregator/core/reports/focus.h"\n', "aggregator/core/rating/rating.c:1: wrong arrow")

    def test_the_stores_rooms_have_an_order(self):
        self.put("aggregator/store/close/period_close.h", "")
        self.put("aggregator/store/close/period_close.c", '#include "aggregator/store/store.h"\n')
        self.wrong("aggregator/store/db/db.c", '#include "aggregator/store/close/period_close.h"\n', "aggregator/store/db/db.c:1: wrong arrow")

    def test_two_files_of_one_name_are_found(self):
        self.put("exporter/main.c", "")
        self.put("aggregator/main.c", "")
        self.put("aggregator/core/rating/live.c", "")
        self.wrong("exporter/meter/live.c", "", "exporter/meter/live.c:1: aggregator/core/rating/live.c has the same name")


class Text(Planted):
    def test_a_banned_call_is_found_with_its_line(self):
        self.put("common/base/buf.c", "int x;\nvoid f(void) { strcpy(a, b); }\n")
        self.expect(text.check_calls(self.dir.name), "common/base/buf.c:2: strcpy() is banned")

    def test_a_search_in_a_text_of_our_own_is_found_with_its_line(self):
        self.put("aggregator/api/made.c", "int x;\nint y = 1;\nbool f(void) { return strstr(json, name) != NULL; }\n")
        self.put("exporter/read.c", "bool f(void) { return strstr(line, name) != NULL; }\n")
        self.expect(text.check_calls(self.dir.name), "aggregator/api/made.c:3: strstr() is banned: use the struct")

    def test_comments_strings_members_and_longer_names_are_not_calls(self):
        self.put("common/base/buf.c", '/* strcpy( */ f("system(1)"); // gets(x)\np->time(1); my_rand(2); snprintf(a, 1, b);\n')
        self.expect(text.check_calls(self.dir.name))

    def test_memory_is_allocated_in_one_file(self):
        self.put("common/base/base.c", "void *f(void) { return malloc(1); }\n")
        self.expect(text.check_calls(self.dir.name))
        self.put("common/base/buf.c", "void *f(void) { return malloc(1); }\n")
        self.expect(text.check_calls(self.dir.name), "common/base/buf.c:1: malloc() is banned")

    def test_what_may_wait_for_the_database_is_called_in_one_file(self):
        self.put("aggregator/store/db/db.c", "void f(void) { PQexec(c, sql); PQfinish(c); }\n")
        self.expect(text.check_calls(self.dir.name))
        self.put("aggregator/store/ingest/live_store.c", "void f(void) { PQclear(PQexecParams(c, sql)); PQntuples(r); }\n")
        self.expect(text.check_calls(self.dir.name), "aggregator/store/ingest/live_store.c:1: PQexecParams() is banned")

    def test_waits_with_a_deadline_are_in_one_file(self):
        self.put("common/base/thread.c", "pthread_cond_timedwait(c, lock, &deadline);\n")
        self.expect(text.check_calls(self.dir.name))
        self.put("exporter/delivery/push.c", "pthread_cond_timedwait(c, lock, &deadline);\n")
        self.expect(text.check_calls(self.dir.name), "exporter/delivery/push.c:1: pthread_cond_timedwait() is banned")

    def test_no_float_where_quantities_are_exact(self):
        self.put("aggregator/core/rating/rating.c", "double price;\n")
        self.expect(text.check_calls(self.dir.name), "aggregator/core/rating/rating.c:1: double")

    def test_a_deadline_may_be_monotonic_and_nothing_else(self):
        self.put("common/base/buf.c", "clock_gettime(CLOCK_MONOTONIC, &t);\nclock_gettime(CLOCK_REALTIME, &t);\n")
        self.expect(text.check_calls(self.dir.name), "common/base/buf.c:2: clocks are read by")

    def test_what_is_cleaned_up_has_a_value_from_the_start(self):
        self.put("common/base/buf.c", "\towned(db) struct db *a = NULL, *b = f(1, 2);\n\tin_place(buf) struct buf c = {0};\n")
        self.expect(text.check_calls(self.dir.name))
        self.put("common/base/buf.c", "\tint x;\n\towned(db) struct db *a = f(1, 2), *b;\n")
        self.expect(text.check_calls(self.dir.name), "common/base/buf.c:2: *b is cleaned up at its scope's end")

    def test_core_reads_no_clock(self):
        self.put("aggregator/core/rating/rating.c", "x = time_wall_ns();\n")
        self.expect(text.check_calls(self.dir.name), "aggregator/core/rating/rating.c:1: core gets the time")

    def test_when_a_tenant_is_in_force_is_asked_for_an_instant(self):
        self.put("aggregator/store/policy/policy_write.c", '"INSERT INTO tenant_term"\n')
        self.put("aggregator/store/policy/policy_lists.c", '"SELECT rfc3339(t.until) AS until FROM tenants_known(now()) t"\n')
        self.expect(text.check_terms(self.dir.name))
        self.put("aggregator/store/quota/exception_store.c", '\n"WHERE w.retired_at IS NULL"\n"JOIN workspace_term x"\n')
        self.expect(text.check_terms(self.dir.name), "aggregator/store/quota/exception_store.c:2: retired_at IS", "aggregator/store/quota/exception_store.c:3: workspace_term")

    def test_a_column_added_to_a_journalled_table_is_empty_in_the_rows_that_are_there(self):
        self.put("aggregator/store/verify/verify_rows.c", '\t{"tenant", "id", "", X},\n')
        self.put("sql/0001_a.sql", "ALTER TABLE tenant ADD a text NOT NULL DEFAULT '';\nSELECT journal_table('tenant', 'id', '');\n")
        self.put("sql/0002_b.sql", "ALTER TABLE tenant ADD COLUMN b text CHECK (b IS NOT NULL), ADD CONSTRAINT c CHECK (b <> '') NOT VALID;\nALTER TABLE other ADD c text NOT NULL;\n")
        self.expect(text.check_added_columns(self.dir.name))
        self.put("sql/0003_c.sql", "ALTER TABLE tenant ADD d numeric(3, 1),\n\tADD e bigint DEFAULT 0;\n")
        self.expect(text.check_added_columns(self.dir.name), "sql/0003_c.sql:2: column e of tenant is not empty")

    def test_an_import_that_names_no_file_is_found(self):
        self.put("tests/support/store/ledger.py", "NS = 1\n")
        self.put("tests/a.py", "import os\nfrom tests.support.store import ledger\nfrom tests.support.store.ledger import NS\n")
        self.put("tests/b.py", "from tests.support import ledger\nfrom tests.support.ledger import NS\nimport tests.support.store.gone\n")
        self.expect(text.check_imports(self.dir.name), "tests/b.py:1: there is no tests/support/ledger.py", "tests/b.py:2: there is no tests/support/ledger/NS.py", "tests/b.py:3: there is no")

    def test_a_mark_of_unfinished_work_is_found(self):
        self.put("sql/0001_a.sql", "-- TO" + "DO\n")
        self.expect(text.check_unfinished(self.dir.name), "sql/0001_a.sql:1: mark of unfinished work")

    def test_a_folder_without_a_readme_is_found(self):
        for path in ("README.md", "common/README.md", "aggregator/README.md", "aggregator/core/README.md"):
            self.put(path, "")
        self.expect(text.check_readmes(self.dir.name), "aggregator/store/README.md:1:", "aggregator/core/quota/engine/README.md:1: neither")

    def test_a_link_to_nothing_is_found(self):
        self.put("README.md", "# What it is\n\n[a](common/README.md) [b](#what-it-is) [c](common/README.md#the-server)\n[d](core/README.md)\n[e](#what)\n")
        self.put("common/README.md", "# common\n## The server\n[up](../README.md)\n")
        self.expect(text.dead_links(self.dir.name), "README.md:4: there is no core/README.md", "README.md:5: README.md has no heading #what")

    def test_blanking_keeps_lines(self):
        self.assertEqual(tree.code_only('a /* x\ny */ "s\\"t" \'"\' b').count("\n"), 1)


class Abi(Planted):
    """A small nvml.h beside a small nvml_abi.h; what the small one lacks is only named."""

    OURS = "#include <stddef.h>\n#include <stdint.h>\n"

    def compare(self, ours, theirs):
        self.put("exporter/source/nvml/nvml_abi.h", self.OURS + ours)
        self.put("nvml.h", "#define NVML_SUCCESS 0\n" + theirs)
        # constants that the small header of ours lacks cannot be compared
        kept = abi.CONSTANTS
        self.addCleanup(setattr, abi, "CONSTANTS", kept)
        abi.CONSTANTS = {"NVST_SUCCESS": "NVML_SUCCESS"}
        return abi.check(self.dir.name, str(Path(self.dir.name) / "nvml.h"))

    SUCCESS = "enum nvml_status { NVST_SUCCESS = 0 };\n"
    RATES = "struct nvml_utilization {\n\tuint32_t gpu, memory; /* percent */\n};\n"

    def test_equal_headers_have_no_finding(self):
        findings, missing = self.compare(self.SUCCESS + self.RATES, "typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;\n")
        self.expect(findings)
        self.assertEqual(missing, [])

    def test_another_order_of_fields_is_found(self):
        findings, _ = self.compare(self.SUCCESS + self.RATES, "typedef struct { unsigned int memory, gpu; } nvmlUtilization_t;\n")
        self.expect(findings, "exporter/source/nvml/nvml_abi.h:1: the offset of nvml_utilization.gpu is 0, and 4 in nvml.h",
                    "exporter/source/nvml/nvml_abi.h:1: the offset of nvml_utilization.memory is 4, and 0")

    def test_another_width_of_a_field_is_found(self):
        findings, _ = self.compare(self.SUCCESS + self.RATES,
                                   "typedef struct { unsigned int gpu; unsigned short memory, pad; } nvmlUtilization_t;\n")
        self.expect(findings, "exporter/source/nvml/nvml_abi.h:1: the size of nvml_utilization.memory is 4, and 2 in nvml.h")

    def test_another_constant_is_found(self):
        findings, _ = self.compare("enum nvml_status { NVST_SUCCESS = 3 };\n", "")
        self.expect(findings, "exporter/source/nvml/nvml_abi.h:1: NVST_SUCCESS is 3, and 0 in nvml.h")

    def test_other_arguments_are_found(self):
        ours = "#define NVML_FUNCTIONS(REQUIRED, OPTIONAL) \\\n\tOPTIONAL(int, nvmlGet, (uint32_t id, char *text))\n"
        findings, _ = self.compare(self.SUCCESS + ours,
                                   "#define DECLDIR\nint DECLDIR nvmlGet(unsigned long long id, char *text);\n")
        self.expect(findings, "exporter/source/nvml/nvml_abi.h:1: nvmlGet takes 4p, and 8p in nvml.h")

    def test_what_the_header_is_too_old_for_is_named(self):
        findings, missing = self.compare(self.SUCCESS + self.RATES, "")
        self.expect(findings)
        self.assertEqual(missing, ["nvmlUtilization_t"])

    def test_a_declaration_without_partner_is_found(self):
        findings, _ = self.compare(self.SUCCESS + "struct nvml_new {\n\tuint32_t field;\n};\n#define NVML_NEW 7\n", "")
        self.expect(findings, "exporter/source/nvml/nvml_abi.h:1: struct nvml_new has no partner", "exporter/source/nvml/nvml_abi.h:1: NVML_NEW has no partner")


class DcgmAbi(Planted):
    """Small headers of DCGM beside a small dcgm_abi.h; what the small ones lack is only named."""

    OURS = "#include <stddef.h>\n#include <stdint.h>\n"
    PAIR = "struct dcgm_pair {\n\tuint32_t group, id;\n};\n"
    THEIRS = "typedef struct { unsigned int entityGroupId, entityId; } dcgmGroupEntityPair_t;\n"

    def compare(self, ours, theirs):
        self.put("exporter/source/dcgm/dcgm_abi.h", self.OURS + ours)
        self.put("dcgm_agent.h", "#include <stdint.h>\n" + theirs)
        for name in ("dcgm_structs.h", "dcgm_fields.h"):
            self.put(name, "")
        self.addCleanup(setattr, abi_dcgm, "CONSTANTS", abi_dcgm.CONSTANTS)
        abi_dcgm.CONSTANTS = {}
        return abi_dcgm.check(self.dir.name, Path(self.dir.name))

    def test_equal_headers_have_no_finding(self):
        findings, missing = self.compare(self.PAIR, self.THEIRS)
        self.expect(findings)
        self.assertEqual(missing, [])

    def test_another_order_of_fields_is_found(self):
        findings, _ = self.compare(self.PAIR, "typedef struct { unsigned int entityId, entityGroupId; } dcgmGroupEntityPair_t;\n")
        self.expect(findings, "exporter/source/dcgm/dcgm_abi.h:1: the offset of dcgm_pair.group is 0, and 4 in dcgm_agent.h",
                    "exporter/source/dcgm/dcgm_abi.h:1: the offset of dcgm_pair.id is 4, and 0")

    def test_other_arguments_are_found(self):
        ours = "#define DCGM_FUNCTIONS(REQUIRED, OPTIONAL) \\\n\tREQUIRED(int, dcgmGet, (uintptr_t handle, double keep_s))\n"
        findings, _ = self.compare(self.PAIR + ours, self.THEIRS + "int dcgmGet(unsigned int handle, double keep);\n")
        self.expect(findings, "exporter/source/dcgm/dcgm_abi.h:1: dcgmGet takes 8d, and 4d in dcgm_agent.h")

    def test_what_the_headers_are_too_old_for_is_named(self):
        findings, missing = self.compare(self.PAIR, "")
        self.expect(findings)
        self.assertEqual(missing, ["dcgmGroupEntityPair_t"])

    def test_a_declaration_without_partner_is_found(self):
        findings, _ = self.compare(self.PAIR + "struct dcgm_new {\n\tuint32_t field;\n};\n#define DCGM_NEW 7\n", self.THEIRS)
        self.expect(findings, "exporter/source/dcgm/dcgm_abi.h:1: dcgm_new.field has no partner", "exporter/source/dcgm/dcgm_abi.h:1: DCGM_NEW has no partner")


if __name__ == "__main__":
    unittest.main()
