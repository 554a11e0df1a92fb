# Tollgate: one Makefile for the whole tree. `make help` lists what it can do.
#
# Everything built lands in $(O)/$(BUILD)/; objects are found by wildcard, so a new file needs no line here.

VERSION := 0.2.0
DATE    := 2026-11-16

O       ?= build
BUILD   ?= release
PREFIX  ?= /usr/local
DESTDIR ?=
B       := $(O)/$(BUILD)
PYTHON  := /usr/bin/python3

# All processors unless -j says otherwise.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc) --no-print-directory
endif

# ---- flags, by variant ----------------------------------------------------------------------------------------------

WARNINGS := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wvla -Wcast-qual -Wformat=2 -Wstrict-prototypes \
            -Wmissing-prototypes -Wswitch -Wundef -Wnull-dereference
# Warnings stop the build where nobody reads them go by: in CI. WERROR=1 asks for the same.
ifneq ($(filter true,$(CI))$(WERROR),)
WARNINGS += -Werror
endif

HARDEN       := -D_FORTIFY_SOURCE=3 -fstack-protector-strong -fstack-clash-protection
SAN          := -fsanitize=address,undefined -fno-sanitize-recover=all
# -fno-plt: all symbols are bound at the start anyway (LINK.release), and a lone scrape need not fetch the table of jumps between.
# -ftrivial-auto-var-init=zero: a variable whose cleanup frees it, and which a return left without a value, freed what lay on the stack, and only where the
# stack held rubbish. The lint `calls` refuses such a declaration; this makes one that it does not see free nothing. Not in the sanitized variants, which are to find it.
FLAGS.release := -O2 -fno-plt -ftrivial-auto-var-init=zero $(HARDEN)
# -g1: a sanitizer's report names functions and lines, and more than that is a quarter of the compiler's time.
FLAGS.san     := -O1 -g1 -fno-omit-frame-pointer $(SAN)
FLAGS.tsan    := -O0 -g1 -fno-omit-frame-pointer -fsanitize=thread
FLAGS.cov     := -O0 --coverage
# For valgrind: optimised as little as it can bear, and what a program leaves without a value stays so.
FLAGS.mem     := -O1 -g1 -fno-omit-frame-pointer
FLAGS.fuzz    := -O1 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link $(SAN)
LINK.release  := -Wl,-z,relro,-z,now
# A unit test's own statements run once: what the optimizer would save there is far less than it costs. Without it gcc guesses at what is initialised.
UNIT.release  := -O1
UNIT.san      := -O0 -Wno-maybe-uninitialized
ifeq ($(filter $(BUILD),release san tsan mem cov fuzz),)
$(error BUILD=$(BUILD) is not known: release, san, tsan, mem or cov)
endif
ifeq ($(BUILD),fuzz)
CC := clang
else ifeq ($(origin CC),default)
CC := gcc
endif

# Position-independent throughout: the programs are PIE, and the simulator is a shared library made of the same objects.
ALL_CFLAGS  := -std=gnu17 -g -D_GNU_SOURCE -I. -I$(B)/gen -DTOLLGATE_VERSION='"$(VERSION)"' -DTOLLGATE_DATE='"$(DATE)"' -fPIC -fno-semantic-interposition \
               -pthread $(WARNINGS) $(FLAGS.$(BUILD)) $(CFLAGS)
ALL_LDFLAGS := -pie -pthread $(FLAGS.$(BUILD)) $(LINK.$(BUILD)) -Wl,--as-needed $(LDFLAGS)
LIBS        := -lmicrohttpd -lcurl -lgnutls -ljansson -lyaml -lcrypt -lnghttp2 -lprotobuf-c -lz -lm
PQ_CFLAGS    = $(shell pkg-config --cflags libpq)

# ---- what is made of what -------------------------------------------------------------------------------------------

objects = $(patsubst %.c,$(B)/obj/%.o,$(1))
# The C files of a folder and of the rooms in it.
sources = $(wildcard $(addsuffix .c,$(1)/* $(1)/*/* $(1)/*/*/*))
COMMON    := $(call objects,$(call sources,common))
EXPORTER  := $(call objects,$(filter-out %/main.c,$(call sources,exporter))) $(B)/obj/gen/podres.pb-c.o
CORE      := $(call objects,$(call sources,aggregator/core))
STORE     := $(call objects,$(call sources,aggregator/store)) $(B)/obj/gen/migrations.o
SERVICE   := $(call objects,$(wildcard aggregator/*.c) $(call sources,aggregator/service) $(call sources,aggregator/api)) \
             $(B)/obj/gen/openapi.o
CLI       := $(call objects,$(filter-out %/main.c,$(call sources,aggregator/cli)))
AGENT     := $(call objects,$(filter-out %/main.c,$(call sources,hooks/agent)))
SIM       := $(call objects,$(wildcard tests/support/nvmlsim/*.c))
DCGM_SIM  := $(call objects,$(wildcard tests/support/dcgmsim/*.c))
# Sources that tests share; the simulators are libraries of their own.
SUPPORT_C := $(filter-out tests/support/nvmlsim/% tests/support/dcgmsim/% tests/support/clockstep/%,$(call sources,tests/support))
SUPPORT   := $(call objects,$(filter-out %_tool.c,$(SUPPORT_C)))
MIGRATIONS := $(sort $(wildcard sql/*.sql))
RIGHTS    := sql/access/owner.sql sql/access/grants.sql sql/access/catalogue.sql sql/access/expected.txt

PROGRAMS  := $(B)/tollgate-exporter $(B)/tollgate-aggregator $(B)/tollgate-agent $(B)/tollgate
SIMULATOR := $(B)/sim/libnvidia-ml.so.1
DCGM_SIMULATOR := $(B)/sim/libdcgm.so.4
CLOCKSTEP := $(B)/sim/libclockstep.so
# Basenames are unique: whatever folder a test or a tool lies in, its program is $(B)/tests/NAME.
UNIT_C    := $(foreach f,$(call sources,tests/unit),$(if $(filter test_%,$(notdir $(f))),$(f)))
TOOL_C    := $(filter %_tool.c,$(SUPPORT_C))
UNITS     := $(patsubst %.c,$(B)/tests/%,$(notdir $(UNIT_C)))
PROPS     := $(patsubst tests/prop/%.c,$(B)/tests/%,$(wildcard tests/prop/prop_*.c))
REPLAYS   := $(patsubst tests/fuzz/%.c,$(B)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))
TOOLS     := $(patsubst %.c,$(B)/tests/%,$(notdir $(TOOL_C)))
BENCHES   := $(patsubst tests/bench/%.c,$(B)/bench/%,$(wildcard tests/bench/*.c))
FUZZERS   := $(patsubst tests/fuzz/%.c,$(O)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

.PHONY: all programs pages installable tests benches fuzzers deps run test bench lint fuzz memcheck soak flags format samples schema install deb clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: programs pages
programs: $(PROGRAMS) $(SIMULATOR) $(DCGM_SIMULATOR)
installable: $(PROGRAMS) pages
tests: programs $(UNITS) $(PROPS) $(REPLAYS) $(TOOLS) $(CLOCKSTEP)
benches: programs $(BENCHES) $(TOOLS)

# Below, $(B)/flags and $(B)/sources change only when their text does: a new flag recompiles everything, a file that
# comes or goes makes its library anew. Where the build tree is, is none of it: it may be named from here or from the root.
remembered = '$(subst $(B)/,,$(subst ','\'',$(1)))'
remember = @mkdir -p $(@D); printf '%s\n' $(remembered) | cmp -s - $@ || printf '%s\n' $(remembered) >$@
$(B)/flags: FORCE
	$(call remember,$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(UNIT.$(BUILD)))
$(B)/sources: FORCE
	$(call remember,$(COMMON) $(EXPORTER) $(CORE) $(STORE) $(SERVICE) $(CLI) $(AGENT) $(SIM) $(DCGM_SIM) $(SUPPORT) $(MIGRATIONS) $(RIGHTS))

# V=1 shows the commands in full.
say = $(if $(V),,@echo '$(1)  $(patsubst $(B)/%,%,$@)';)
compile = $(call say,CC  )mkdir -p $(@D); $(CC) $(ALL_CFLAGS) $(EXTRA_CFLAGS) -MMD -MP -c -o $@ $<
$(STORE): EXTRA_CFLAGS = $(PQ_CFLAGS)
$(B)/obj/tests/unit/%.o $(B)/obj/tests/fuzz/%.o: EXTRA_CFLAGS = $(UNIT.$(BUILD))
$(B)/obj/%.o: %.c $(B)/flags
	$(compile)
$(B)/obj/gen/%.o: $(B)/gen/%.c $(B)/flags
	$(compile)

# The kubelet's messages. Warnings about code that protoc-c generates are switched off: we cannot mend it.
$(B)/gen/podres.pb-c.c $(B)/gen/podres.pb-c.h &: exporter/identity/kubelet/podres.proto Makefile
	@mkdir -p $(@D); protoc-c --proto_path=$(<D) --c_out=$(B)/gen podres.proto
$(B)/obj/gen/podres.pb-c.o: EXTRA_CFLAGS = -w
$(B)/obj/exporter/identity/kubelet/podres_decode.o: $(B)/gen/podres.pb-c.h

# The migrations and the rights travel inside the aggregator, as aggregator/store/db/migrate.h declares them.
$(B)/gen/migrations.c: $(MIGRATIONS) $(RIGHTS) $(B)/sources Makefile
	@mkdir -p $(@D)
	@{ echo '#include "aggregator/store/db/migrate.h"'; \
	for f in $(MIGRATIONS); do name=$${f##*/}; n=$$(expr $${name%%[!0-9]*} + 0); \
		echo "__asm__(\".pushsection .rodata; migration_$$n: .incbin \\\"$$f\\\"; .byte 0; .popsection\");"; \
		echo "extern const char migration_$$n[];"; \
	done; \
	for f in $(RIGHTS); do name=$${f##*/}; name=access_$${name%.*}; \
		echo "__asm__(\".pushsection .rodata; .globl $$name; $$name: .incbin \\\"$$f\\\"; .byte 0; .popsection\");"; \
	done; \
	echo 'const struct migration_file migration_files[] = {'; \
	for f in $(MIGRATIONS); do name=$${f##*/}; n=$$(expr $${name%%[!0-9]*} + 0); \
		echo "	{$$n, \"$$name\", migration_$$n, $$(wc -c <$$f)},"; \
	done; \
	echo '};'; echo 'const size_t migration_file_count = $(words $(MIGRATIONS));'; } >$@

# GET /v1/openapi.json is this document with the program's version.
$(B)/gen/openapi.c: aggregator/api/openapi.json $(B)/flags Makefile
	@mkdir -p $(@D); sed 's/@VERSION@/$(VERSION)/' $< >$(B)/gen/openapi.json
	@{ echo '#include "aggregator/api/api.h"'; \
	echo '__asm__(".pushsection .rodata; .globl openapi_json; openapi_json: .incbin \"$(B)/gen/openapi.json\"; .byte 0; .popsection");'; \
	echo "const size_t openapi_json_bytes = $$(wc -c <$(B)/gen/openapi.json);"; } >$@

archive = @rm -f $@; $(AR) rcs $@ $(filter %.o,$^)
$(B)/libcommon.a: $(COMMON)
$(B)/libexporter.a: $(EXPORTER)
$(B)/libcore.a: $(CORE)
$(B)/libstore.a: $(STORE)
$(B)/libcli.a: $(CLI)
$(B)/libagent.a: $(AGENT)
$(B)/libtestsupport.a: $(SUPPORT)
$(B)/libnvmlsim.a: $(SIM)
$(B)/%.a: $(B)/sources
	$(archive)

link = $(call say,LINK)mkdir -p $(@D); $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS)
$(B)/tollgate-exporter: $(B)/obj/exporter/main.o $(B)/libexporter.a $(B)/libcommon.a
	$(link)
$(B)/tollgate-aggregator: $(SERVICE) $(B)/libstore.a $(B)/libcore.a $(B)/libcommon.a
	$(link) -lpq
$(B)/tollgate-agent: $(B)/obj/hooks/agent/main.o $(B)/libagent.a $(B)/libcommon.a
	$(link)
$(B)/tollgate: $(B)/obj/aggregator/cli/main.o $(B)/libcli.a $(B)/libcore.a $(B)/libcommon.a
	$(link)

# Manual pages and completions, printed by the programs from their own tables.
PAGES := $(B)/man/tollgate.1 $(B)/man/tollgate-exporter.8 $(B)/man/tollgate-aggregator.8 $(B)/man/tollgate-agent.8 \
         $(B)/completion/tollgate.bash $(B)/completion/_tollgate
pages: $(PAGES)
page = @mkdir -p $(@D); $(1) >$@
$(B)/man/tollgate.1: $(B)/tollgate
	$(call page,$< --man)
$(B)/man/%.8: $(B)/%
	$(call page,$< --print-man)
$(B)/completion/tollgate.bash: $(B)/tollgate
	$(call page,$< completion bash)
$(B)/completion/_tollgate: $(B)/tollgate
	$(call page,$< completion zsh)

# Only NVML's names and tollgate_sim* leave the simulator, so that its copy of common/ cannot meet the exporter's.
$(B)/sim/exports.map: Makefile
	@mkdir -p $(@D); echo '{ global: nvml*; tollgate_sim*; local: *; };' >$@
$(SIMULATOR): $(SIM) $(B)/libcommon.a $(B)/sim/exports.map
	$(call say,LINK)$(CC) $(filter-out -pie,$(ALL_LDFLAGS)) -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=$(B)/sim/exports.map \
	      -o $@ $(filter %.o %.a,$^) $(LIBS)

# DCGM's simulator over the same scenario and the same world, without NVML's functions.
$(B)/sim/dcgm.map: Makefile
	@mkdir -p $(@D); echo '{ global: dcgm*; errorString; tollgate_sim*; local: *; };' >$@
$(DCGM_SIMULATOR): $(DCGM_SIM) $(filter-out %/truth.o %/fakeproc.o $(B)/obj/tests/support/nvmlsim/nvmlsim%,$(SIM)) $(B)/libcommon.a $(B)/sim/dcgm.map
	$(call say,LINK)$(CC) $(filter-out -pie,$(ALL_LDFLAGS)) -shared -Wl,-soname,libdcgm.so.4 -Wl,--version-script=$(B)/sim/dcgm.map \
	      -o $@ $(filter %.o %.a,$^) $(LIBS)

# Preloaded into PostgreSQL too, so without a sanitizer in any variant.
$(CLOCKSTEP): tests/support/clockstep/clockstep.c $(B)/flags
	$(call say,LINK)mkdir -p $(@D); $(CC) -std=gnu17 -D_GNU_SOURCE -O2 -fPIC $(WARNINGS) $(HARDEN) -shared -o $@ $<

TESTED := $(B)/libtestsupport.a $(B)/libnvmlsim.a $(B)/libexporter.a $(B)/libagent.a $(B)/libcli.a $(B)/libcore.a $(B)/libcommon.a
$(B)/tests/test_db_watch: $(B)/obj/aggregator/store/db/db_watch.o
$(B)/tests/test_tenant_queues: $(B)/obj/aggregator/service/tenant_queues.o
$(foreach f,$(UNIT_C) $(TOOL_C),$(eval $(B)/tests/$(notdir $(f:.c=)): $(B)/obj/$(f:.c=.o)))
$(UNITS): $(TESTED) | $(SIMULATOR) $(DCGM_SIMULATOR)
	$(link) -lcmocka
$(PROPS): $(B)/tests/%: $(B)/obj/tests/prop/%.o $(TESTED)
	$(link) -lcmocka
$(filter-out %/store_tool,$(TOOLS)): $(TESTED)
	$(link)
$(B)/tests/store_tool: $(B)/libstore.a $(B)/libcore.a $(B)/libcommon.a
	$(link) -lpq
$(REPLAYS): $(B)/tests/%: $(B)/obj/tests/fuzz/%.o $(B)/obj/tests/fuzz/replay.o $(TESTED)
	$(link)
$(BENCHES): $(B)/bench/%: $(B)/obj/tests/bench/%.o $(TESTED)
	$(link)
ifeq ($(BUILD),fuzz)
$(FUZZERS): $(B)/%: $(B)/obj/tests/fuzz/%.o $(TESTED)
	$(link) -fsanitize=fuzzer
fuzzers: $(FUZZERS)
endif

# ---- commands -------------------------------------------------------------------------------------------------------

DEPS := sh tests/support/deps.sh

#: make              the four programs and the NVML simulator, in build/release/; BUILD=san|tsan|cov for another variant
#: make deps         install the packages that are missing (Debian 12, as root or with sudo)
deps:
	@$(DEPS) all

#: make run          the demo: database, aggregator and exporters on simulated GPUs; RUN_SECONDS=n ends it, TOLLGATE_STATE=dir
run:
	@$(DEPS) run
	@$(MAKE) programs
	@TOLLGATE_BUILD_DIR=$(abspath $(B)) deploy/demo/run.sh

#: make test         every test, in the variants it needs; T=text for those whose name has the text
test:
	@$(DEPS) test
	@$(PYTHON) tests/run.py --out $(O) $(if $(T),-k '$(T)') $(TEST_FLAGS)

#: make bench        our figures beside a limit's or a peer's, measured in the same run; T=text for some
bench:
	@$(DEPS) bench
	@$(MAKE) benches
	@$(PYTHON) tests/bench/run.py --out $(O) $(if $(T),-k '$(T)')

#: make lint         the include table, formatter, compilers and analyzers; T=name for one check
lint:
	@$(DEPS) lint
	@$(PYTHON) -B tests/lint/run.py --out $(O) $(if $(T),--only '$(T)')

# The compiler's flags, for the lints, which need the generated header as well.
flags: $(B)/gen/podres.pb-c.h
	@printf '%s\n' $(foreach f,$(ALL_CFLAGS),'$(subst ','\'',$(f))') $(PQ_CFLAGS)

#: make fuzz         libFuzzer on every parser, FUZZ_SECONDS=60 each; T=name for one
FUZZ_SECONDS ?= 60
FUZZ_TARGETS := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_$(or $(T),*).c))
# Inputs that libFuzzer finds stay in the build tree; tests/fuzz/corpus is only read.
fuzz:
	@$(DEPS) fuzz
	@$(MAKE) BUILD=fuzz fuzzers
	@set -e; for target in $(FUZZ_TARGETS); do \
		echo "fuzz $$target: $(FUZZ_SECONDS) s"; \
		mkdir -p $(O)/fuzz/found/$$target; \
		$(O)/fuzz/fuzz_$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=1024 -verbosity=0 -print_final_stats=1 \
			-artifact_prefix=$(O)/fuzz/$$target- $(O)/fuzz/found/$$target tests/fuzz/corpus/$$target; \
	done

#: make memcheck     the tests of the command line with tollgate under valgrind, built without the zeroing of variables
memcheck:
	@$(DEPS) memcheck
	@$(PYTHON) tests/run.py --out $(O) --memcheck $(if $(T),-k '$(T)') $(TEST_FLAGS)

#: make soak         for SOAK_SECONDS=3600 each: property tests with fresh seeds, the random adversary, random bills; then SOAK_REQUESTS=200000 fuzzed requests and make memcheck; T=prop for the first alone
SOAK_SECONDS ?= 3600
SOAK_REQUESTS ?= 200000
soak:
	@$(DEPS) test
	@$(PYTHON) tests/run.py --out $(O) --only prop --soak $(SOAK_SECONDS) $(if $(T),-k '$(T)') $(TEST_FLAGS)
	@$(if $(T),,SOAK_SECONDS=$(SOAK_SECONDS) SOAK_REQUESTS=$(SOAK_REQUESTS) $(PYTHON) tests/run.py --out $(O) -k test_trust_adversary --jobs 1 $(TEST_FLAGS))
	@$(if $(T),,SOAK_SECONDS=$(SOAK_SECONDS) $(PYTHON) tests/run.py --out $(O) -k test_independent --jobs 1 $(TEST_FLAGS))
	@$(if $(T),,$(MAKE) memcheck)

#: make format       lay out C files by .clang-format; F="a.c b.h" for some
format:
	@clang-format -i $(or $(F),$(shell git ls-files -co --exclude-standard '*.c' '*.h'))

#: make samples      write the sample configurations in deploy/ anew from the option tables
samples: programs
	$(B)/tollgate-exporter --print-config >deploy/exporter.yaml
	$(B)/tollgate-aggregator --print-config >deploy/aggregator.yaml
	$(B)/tollgate-agent --print-config >deploy/agent.yaml

#: make schema       write sql/access/expected.txt anew, the schema that the migrations make, by a server of its own
schema: programs
	$(PYTHON) -m tests.support.store.schema >$(B)/expected.txt
	mv $(B)/expected.txt sql/access/expected.txt

#: make install      DESTDIR=dir PREFIX=/usr/local: programs, units, sample configurations and policies, dashboards, man pages, completion
TO := $(DESTDIR)$(PREFIX)
install: installable
	install -m 755 -D -t $(TO)/bin $(B)/tollgate $(B)/tollgate-exporter $(B)/tollgate-aggregator $(B)/tollgate-agent
	install -m 644 -D -t $(TO)/share/tollgate $(wildcard deploy/*.yaml)
	install -m 644 -D -t $(TO)/share/tollgate/examples deploy/demo/policy.yaml $(wildcard deploy/examples/*.yaml)
	install -m 644 -D -t $(TO)/share/tollgate/grafana $(wildcard dashboards/grafana/*.json)
	install -m 644 -D -t $(TO)/share/tollgate/prometheus $(filter-out %.test.yml,$(wildcard dashboards/prometheus/*.yml))
	install -m 644 -D -t $(TO)/lib/systemd/system $(wildcard deploy/systemd/*.service)
	sed -i 's|/usr/local/|$(PREFIX)/|' $(patsubst deploy/systemd/%,$(TO)/lib/systemd/system/%,$(wildcard deploy/systemd/*.service))
	install -m 644 -D -t $(TO)/share/tollgate/systemd $(wildcard deploy/systemd/*.conf)
	install -m 755 -D -t $(TO)/share/tollgate/slurm $(wildcard hooks/slurm/*.sh)
	install -m 644 -D -t $(TO)/share/tollgate/slurm $(wildcard hooks/slurm/*.lua)
	install -m 644 -D -t $(TO)/share/man/man1 $(filter %.1,$(PAGES))
	install -m 644 -D -t $(TO)/share/man/man8 $(filter %.8,$(PAGES))
	install -m 644 -D $(B)/completion/tollgate.bash $(TO)/share/bash-completion/completions/tollgate
	install -m 644 -D -t $(TO)/share/zsh/site-functions $(B)/completion/_tollgate

#: make deb          Debian packages of exporter, aggregator, agent and command line, in build/deb/
# dpkg-buildpackage wants debian/ at the top of a tree, so it gets a copy of ours, which finds the objects that are there already.
DEB_TREE := $(O)/deb/tollgate-$(VERSION)
deb: installable
	@$(DEPS) package
	@rm -rf $(O)/deb; mkdir -p $(DEB_TREE)
	@cp -a Makefile README.md common exporter aggregator hooks sql dashboards deploy tests $(DEB_TREE)/; cp -a deploy/debian $(DEB_TREE)/
	@cd $(DEB_TREE) && env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS DEB_BUILD_OPTIONS='noautodbgsym $(DEB_BUILD_OPTIONS)' TOLLGATE_OBJECTS=$(abspath $(O)) \
		dpkg-buildpackage -us -uc -b
	@ls $(O)/deb/*.deb

#: make clean        remove the build tree
clean:
	rm -rf $(O)

help:
	@sed -n 's/^#: //p' Makefile

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
