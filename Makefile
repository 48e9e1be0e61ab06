# `make` without a target lists the targets. It needs Python 3.11 or newer, and installs
# pinned packages into .venv. requirements-torch.txt explains TORCH and TORCH_INDEX.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
# If MPI's compiler is installed, Horovod is built with MPI as well.
EXTRAS := .venv/extras-$(if $(shell command -v mpicxx),mpi,gloo)

# Even under `make -j`, measurements and tests must not run at the same time.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help quickstart test test-all test-gpu lint status rerun table cluster-demo bench example site-docs venv \
    extras lock clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

quickstart: $(INSTALLED) ## install, and run the default experiment (config.yaml)
	@$(BIN)/rankbench run

# A skip is a failure here: mark a test `equipment` if it needs more than this.
elsewhere := equipment or further or alone or long
test: REQUIRE := all
test: $(INSTALLED) ## tests that need only Python, make and git: about 6 minutes
	@$(two_by_two) -m '(unit or contract or first) and not ($(elsewhere))' $(ARGS)

test-all: $(INSTALLED) ## all tests that this machine can run; REQUIRE=all: a skip is a failure
	@# Tests on the pretend cluster mostly wait for Slurm, so they run beside the others.
	@# Then tests that compare durations or fill the machine, one at a time, even if a
	@# test has failed. Status 5 of pytest means that ARGS chose none.
	@mkdir -p build
	@$(two_by_two) -m '$(all) and cluster and not alone' $(ARGS) >build/cluster.log 2>&1 & \
	beside=$$!; most=0; cluster=0; apart=0; \
	$(two_by_two) -m '$(all) and not (alone or cluster)' $(ARGS) || most=$$?; \
	wait "$$beside" || cluster=$$?; cat build/cluster.log; \
	$(pytest) -m '$(all) and alone' $(ARGS) || apart=$$?; \
	case $$most$$cluster$$apart in 555 | *[!05]*) exit 1 ;; esac

test-gpu: $(INSTALLED) ## on a machine with a GPU: its first eight minutes, from ceilings to gates
	@$(BIN)/python tests/gpu/campaign.py one --out results/gpu

pytest = $(BIN)/python -m pytest -q $(if $(REQUIRE),--require=$(REQUIRE))
# EXCEPT='MARKERS': `make test-all` omits tests with these markers.
all := not oneccl and not long$(if $(EXCEPT), and not ($(EXCEPT)))

# Two files at a time, because tests wait a lot; in the order of conftest.py. Each worker
# has pretend clusters of its own, and measures without waiting for the other.
two_by_two = $(pytest) -n 2 --dist loadfile --no-loadscope-reorder

lint: $(INSTALLED) ## style, types, rooms, workflow
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy --no-error-summary
	$(BIN)/python -m pytest -q tests/contract/test_house.py

# Options for another experiment, a smaller version of it, or another machine:
# make status EXPERIMENT=FILE OVERRIDE=NAME SITE=slurm_profile
experiment = $(if $(EXPERIMENT),"$$EXPERIMENT")
options = $(if $(OVERRIDE),--override "$$OVERRIDE") $(if $(SITE),--site "$$SITE")

# Exit status 1 means that a cell has failed; for `make` that is not an error.
status: $(INSTALLED) ## show the state of every cell; EXPERIMENT=FILE instead of config.yaml
	@$(BIN)/rankbench status $(options) -- $(experiment) || [ $$? -eq 1 ]

# $$CELL comes from the environment, so that the shell does not interpret its value.
rerun: $(if $(CELL)$(FAILED)$(STALE),$(INSTALLED)) ## measure again: CELL=ID, FAILED=1 or STALE=1, and EXPERIMENT=FILE
	@[ -n "$$CELL$$FAILED$$STALE" ] || { \
	    echo 'which cell? make rerun CELL=ID, with an ID from `make status`;' \
	        'FAILED=1: all failed cells; STALE=1: all stale cells' >&2; exit 2; }
	@$(BIN)/rankbench rerun $(options) $(if $(FAILED),--failed) $(if $(STALE),--stale) \
	    -- $(experiment) $(if $(CELL),"$$CELL")

table: $(INSTALLED) ## make tables and plots from the records; measures nothing
	@$(BIN)/rankbench table $(options) -- $(experiment)

cluster-demo: $(INSTALLED) ## as root: run an experiment with Slurm on a pretend cluster of 4 hosts
	@$(BIN)/python tests/cluster/demo.py

bench: $(INSTALLED) ## measure rankbench's own overhead against bare loops
	@[ -e data/digits.npz ] || \
	    $(BIN)/python -m rankbench.rank.data.prepare digits --root data
	@set -e; for name in collectives harness pipeline planning startup tables; do \
	    echo "benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py; done

example: $(INSTALLED) ## make docs/example, README's answer and the screenshot of a new run, or of RESULTS=FOLDER; NAME=...: an example of the gallery
	@$(BIN)/python tests/make_example.py $(if $(NAME),--name "$$NAME") $(if $(RESULTS),"$$RESULTS")

# Apart from .venv: nothing else needs what it installs. With --quiet, warnings would not
# count, and --strict would find nothing.
site-docs: ## make the documentation a site, build/site-docs; a dead link is an error
	@$(PYTHON) -m venv build/docs
	@build/docs/bin/pip install -q -e '.[docs,results]'
	@build/docs/bin/mkdocs build --strict

venv: $(INSTALLED) ## only install the environment into .venv

extras: $(EXTRAS) ## install Horovod, DeepSpeed, transformers, timm and more; needs g++, make, and mpicxx for MPI

lock: ## renew the pinned requirements with Python 3.11; UPGRADE=1: newest versions
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	    echo "make lock needs Python 3.11: make lock PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/pip install -q pip-tools==7.6.2
	@$(pip_compile) --output-file requirements.lock pyproject.toml
	@$(pip_compile) --extra extras --extra models --constraint requirements.lock \
	    --output-file requirements-extras.txt pyproject.toml
	@# Images get the same versions. DeepSpeed is in sources.txt only. pip must also find
	@# the CPU build of torch (requirements-torch.txt).
	@# What an image pins itself is not bound to the version here.
	@set -e; for file in containers/requirements/*.in; do \
	    own="$$(sed -n 's/==.*//p' "$$file" | paste -sd '|')"; \
	    sed -n 's/^\([a-zA-Z0-9._-]*==[^ ;]*\).*/\1/p' requirements-extras.txt | \
	        grep -vE "^($${own:-none})==" >build/lock/extras.txt; \
	    $(pip_compile) --no-config --generate-hashes --strip-extras \
	        --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	        --constraint requirements.lock --constraint build/lock/extras.txt \
	        --unsafe-package deepspeed --output-file "$${file%.in}.txt" "$$file"; done
	@# Remove the warning at the end of each file about packages that we omit on purpose.
	@sed -i '/^$$/,$$d' requirements.lock requirements-extras.txt \
	    $(patsubst %.in,%.txt,$(wildcard containers/requirements/*.in))

pip_compile = CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile -q \
    $(if $(UPGRADE),--upgrade)

clean: ## remove the environment and caches, not results, data or images
	rm -rf .venv build src/*.egg-info .pytest_cache .ruff_cache .mypy_cache \
	    .import_linter_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +

# The build of torch that was requested before; another TORCH installs over it.
asked_before := $(file < .venv/torch)
# A copied or moved environment would run the code at its old place.
made_here := $(shell grep -sF -- ' $(CURDIR)/.venv' .venv/pyvenv.cfg)

$(INSTALLED): requirements.lock requirements-torch.txt pyproject.toml \
    $(if $(made_here),,FORCE) $(if $(filter-out $(asked_before),$(TORCH)),FORCE)
	@$(if $(made_here),$(BIN)/python -m pip --version >/dev/null 2>&1,false) || { \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	        have="$$($(PYTHON) --version 2>/dev/null || echo not installed)"; \
	        echo "rankbench needs Python 3.11 or newer; $(PYTHON) is $$have." \
	            "Choose another one: make PYTHON=python3.11 ..." >&2; \
	        exit 1; }; \
	    $(PYTHON) -m venv --clear '$(CURDIR)/.venv'; }
	@echo "installing the pinned packages into .venv (about a minute with torch)"
	@$(BIN)/python -m pip install -qq --require-hashes -r requirements.lock
	@$(BIN)/python -P containers/torch_build.py
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .
	@# Inspect torch and the devices once; the result is cached in .venv.
	@$(BIN)/python -m rankbench.launch.site.machine >/dev/null
	@printf '%s\n' "$$TORCH" > .venv/torch && touch $@

$(EXTRAS): $(INSTALLED) requirements-extras.txt containers/build_horovod.sh
	@echo "installing DeepSpeed, torchao, transformers, timm, lightning, accelerate and" \
	    "the build tools of Horovod into .venv"
	@# DeepSpeed has no wheel; it is built against the installed torch.
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --require-hashes \
	    -r requirements-extras.txt
	@MAKEFLAGS= bash containers/build_horovod.sh --python $(BIN)/python
	@rm -f .venv/extras-* && touch $@
