# The front door for developers. `make help` reads the comments after `##`.

VENV ?= .venv
BIN ?= $(VENV)/bin
PYTHONS ?= 3.11 3.12 3.13
RUN ?= bash -c
PAGES = README.md $(shell find docs -name '*.md')

.DEFAULT_GOAL := help
.PHONY: help install check check-all fresh lint format types imports cog cog-check test quick \
    mutations report report-chaos report-contention report-crash report-model \
    report-bench report-power report-power-cut report-schedules report-scorecard \
    report-watching clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Make the environment with all development tools.
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/pip install -q -e '.[dev]'

check: lint types imports cog-check test ## The gate: everything that must hold on main.

check-all: ## The tests on each supported Python, each in an environment of its own.
	@set -e; for version in $(PYTHONS); do \
	    python=python$$version; \
	    $$python -c '' 2> /dev/null || \
	        python=$$(ls -d "$$(pyenv root)/versions/$$version".*/bin/python | sort -V | tail -1); \
	    echo "== Python $$version: $$python"; \
	    $$python -m venv .venv-$$version; \
	    .venv-$$version/bin/pip install -q --disable-pip-version-check -e '.[dev]'; \
	    .venv-$$version/bin/pytest -n 2; \
	done

fresh: ## The README's two commands, word for word, in an empty clone (minutes).
	@set -e; rm -rf .fresh; git clone -q . .fresh; cd .fresh; \
	for part in 'Run it' 'Test it'; do \
	    command=$$(sed -n '/^## '"$$part"'/,/^## /{/^```sh$$/,/^```$$/{/^```/!p}}' README.md); \
	    echo "== $$part: $$command"; \
	    $(RUN) "$$command"; \
	done

lint: ## Style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: ## Put the format right.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: ## mypy --strict over sources, tests and examples.
	$(BIN)/mypy --strict

imports: ## Who may import whom.
	$(BIN)/lint-imports

cog: ## Write the generated parts of the documents.
	$(BIN)/python -m cogapp -I docs -r $(PAGES)

cog-check: ## Fail when a generated part is stale.
	$(BIN)/python -m cogapp -I docs --check $(PAGES)

test: ## The whole suite, documents included.
	$(BIN)/pytest -n 2

.PHONY: backups
backups: ## A hundred backups in a row under load, each read back (half a minute).
	KILLPROOF_TEST_BACKUPS=100 $(BIN)/pytest tests/process/test_operations.py -k under_load

quick: ## What needs no processes: seconds.
	$(BIN)/pytest tests/unit tests/checkers tests/test_tidy.py

mutations: ## Take the core's guards away, one at a time, and see tests go red: minutes.
	$(BIN)/python tests/mutations.py

.PHONY: mutate-checkers histories
PROCESSES ?= 1
mutate-checkers: ## Change the checkers and see tests go red: FILES=leases[:function] PROCESSES=2.
	$(BIN)/python tests/mutate_checkers.py --processes $(PROCESSES) $(FILES)

histories: ## Record the runs without faults anew, of which each line is tried.
	$(BIN)/python -m tests.checkers.record

.PHONY: matrix
matrix: ## The core in other surroundings: another SQLite, Python, zone, locale, limits (minutes).
	$(BIN)/python tests/matrix.py $(ROWS)

REPORTS = report-chaos report-crash report-contention report-power-cut

report: $(REPORTS) ## Make reports/ anew from real runs (minutes).

report-chaos: ## The harness on the queue, ten seeds: reports/chaos-proc.md and .html.
	rm -rf killproof-store/report
	for seed in 1 2 3 4 5 6 7 8 9 10; do \
	    $(BIN)/killproof chaos run --seed $$seed --store killproof-store/report/$$seed || exit; \
	done
	$(BIN)/python -c 'import sys; from pathlib import Path; \
	    from killproof_chaos.report import write_markdown; \
	    write_markdown([Path(store) for store in sys.argv[2:]], Path(sys.argv[1]))' \
	    reports/chaos-proc.md killproof-store/report/1 killproof-store/report/[2-9] \
	    killproof-store/report/10
	$(MAKE) --no-print-directory cog

report-contention: ## The queue beside a plain reference: reports/contention.md.
	$(BIN)/killproof bench claim --goals --report reports/contention.md

BENCH = $(BIN)/killproof bench

report-bench: ## The bench's other figures of record, one after the other (40 minutes, alone).
	$(BENCH) capacity --report reports/capacity.md
	$(BENCH) operations --report reports/operations.md
	$(BENCH) rows --rows 5000000 --report reports/rows.md
	$(BENCH) peers --workers 16 --report reports/peers.md
	$(BENCH) gate-proof --store killproof-store/gate --report reports/gate.md

report-watching: ## What 50 open pages cost the workers: reports/watching.md (two minutes).
	$(BIN)/killproof bench watch --report reports/watching.md

MODEL = $(BIN)/killproof chaos model --store killproof-store/model

report-model: ## Every state of the lease protocol, and without each guard: reports/model.md.
	rm -rf killproof-store/model
	$(MODEL)/1 --workers 2 --jobs 2
	$(MODEL)/2 --workers 3 --jobs 1
	$(MODEL)/3 --workers 1 --jobs 3
	$(MODEL)/4 --workers 3 --jobs 2
	$(MODEL)/5 --workers 2 --jobs 3 --no-people
	for guard in $$($(BIN)/killproof chaos model --guards | cut -d ' ' -f 1); do \
	    $(MODEL)/without-$$guard --jobs 1 --without $$guard > /dev/null; test $$? = 1 || exit; \
	done
	$(BIN)/python -c 'import sys; from pathlib import Path; \
	    from killproof_chaos.report_model import write_markdown; \
	    write_markdown([Path(store) for store in sys.argv[2:]], Path(sys.argv[1]))' \
	    reports/model.md killproof-store/model/[1-9] \
	    $$($(BIN)/killproof chaos model --guards | \
	        awk '{ print "killproof-store/model/without-" $$1 }')

CUTS = killproof-store/power-cut
HASTY = killproof-process minimal synchronous-normal acknowledges-before-fsync

CRASHES = killproof-store/crash

report-crash: ## A kill at every file call of every operation: reports/crash.md and .html.
	rm -rf $(CRASHES)
	for queue in killproof minimal; do \
	    $(BIN)/killproof chaos crash --target $$queue --store $(CRASHES)/$$queue || exit; \
	done
	for pair in deletes-at-claim:claim ack-without-fence:late_ack attempt-not-counted:claim \
	    effect-and-ack-apart:completing; do \
	    $(BIN)/killproof chaos crash --target $${pair%:*} --operation $${pair#*:} --no-errors \
	        --store $(CRASHES)/$${pair%:*}; test $$? = 1 || exit 3; \
	done
	$(BIN)/python -c 'import sys; from pathlib import Path; \
	    from killproof_chaos.report_crash import write_markdown; \
	    write_markdown([Path(store) for store in sys.argv[2:]], Path(sys.argv[1]))' \
	    reports/crash.md $(CRASHES)/killproof $(CRASHES)/minimal $(CRASHES)/deletes-at-claim \
	    $(CRASHES)/ack-without-fence $(CRASHES)/attempt-not-counted \
	    $(CRASHES)/effect-and-ack-apart

report-power-cut: ## Power cuts of several queues, side by side: reports/power-cut.md.
	rm -rf $(CUTS)
	for seed in $$(seq 24); do \
	    $(BIN)/killproof chaos disk --points 250 --seed $$seed \
	        --store $(CUTS)/killproof/$$seed || exit; \
	done
	for target in $(HASTY); do for seed in 1 2 3; do \
	    $(BIN)/killproof chaos disk --target $$target --points 250 --seed $$seed \
	        --store $(CUTS)/$$target/$$seed > /dev/null; test $$? -le 1 || exit; \
	done; done
	$(BIN)/python -m killproof_chaos.report_disk_markdown reports/power-cut.md \
	    $$(printf '%s\n' $(CUTS)/*/* | sort -V)
	$(MAKE) --no-print-directory cog

SIM = $(BIN)/killproof chaos sim
SCHEDULES = killproof-store/schedules
# How long a scenario may take, and the two others: all of it takes about twelve minutes.
SWEEP ?= 4m
# Those of the dispatcher have threads that share memory: nothing may be left out, and none ends.
SWEEP_THREADS ?= 1m
SWEEP_MINIMAL ?= 90s
SWEEP_RANDOM ?= 5m
# A run that is there already is not made again: an interrupted sweep goes on where it was.
EXPLORE = once() { \
    grep -qs interrupted.:.false $(SCHEDULES)/$$1/verdict.json || { rm -rf $(SCHEDULES)/$$1; \
    place=$$1; shift; $(SIM) --store $(SCHEDULES)/$$place "$$@" > /dev/null; \
    test $$? -le 2; }; }

report-schedules: ## Every schedule of every scenario, and many at random: reports/schedules.md.
	$(SIM) --scenarios | cut -d " " -f 1 | sort -r | xargs -P 2 -I NAME bash -c '$(EXPLORE); \
	    case NAME in dispatcher*) time=$(SWEEP_THREADS);; *) time=$(SWEEP);; esac; \
	    once exhaustive/killproof-NAME --scenario NAME --crashes 1 --budget $$time'
	$(EXPLORE); once exhaustive/minimal --target minimal --crashes 1 \
	    --budget $(SWEEP_MINIMAL) --jobs 2
	$(EXPLORE); once random/killproof --scheduler pct --depth 8 --crashes 1 --seed 1 \
	    --budget $(SWEEP_RANDOM) --jobs 2
	$(EXPLORE); once random/minimal --target minimal --scheduler pct --depth 8 --crashes 1 --seed 1 \
	    --budget 20s --jobs 2
	$(EXPLORE); once naive/1 --target checks-then-claims --scenario claim
	$(EXPLORE); once naive/2 --target reads-then-writes --scenario unique-key
	$(EXPLORE); once naive/3 --target ack-without-fence --scenario stale-ack
	$(EXPLORE); once naive/4 --target checks-then-inserts --scenario unique-key
	$(BIN)/python -c 'import sys; from pathlib import Path; \
	    from killproof_chaos.report_schedules import write_markdown; \
	    write_markdown(*map(Path, sys.argv[1:3]), *sys.argv[3:])' \
	    $(SCHEDULES) reports/schedules.md $(MAKEOVERRIDES)

POWER = killproof-store/power
# Broken queues come first, then healthy ones; what is left of the time is for the other engines.
POWER_BUDGET ?= 33m

report-power: ## What the harness finds, how surely and how fast: reports/power.md (35 minutes).
	rm -rf $(POWER)
	$(BIN)/killproof chaos power --seeds 20 --budget $(POWER_BUDGET) --store $(POWER); test $$? -le 2
	cp $(POWER)/power.md $(POWER)/power.html reports/

CARD = scorecard
# What people have read in the code of a queue, if there is such a file.
NOTES = $(wildcard reports/$(CARD)-notes.toml)

# After this long it ends as Ctrl-C ends it, with what there is; made again it goes on behind that.
CARD_LIMIT ?= 42m

report-scorecard: ## Public queues, each on what it promises: the scorecard (40 minutes).
	timeout --preserve-status --signal=INT $(CARD_LIMIT) \
	    $(BIN)/killproof chaos scorecard --store killproof-store/$(CARD) \
	    --report reports/$(CARD).md $(if $(NOTES),--notes $(NOTES)); test $$? -le 2

clean: ## Remove what tools have left.
	rm -rf .fresh .ci-venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache
