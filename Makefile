# make demo   build, fetch the default model, stream an answer, with drafts and without
# make test   the whole gate: lint, types, all tests without weights, a slice on real models
# make fuzz   mutated model files through a build with sanitizers
# Slow downloads of torch's CUDA build? PIP_ARGS="--extra-index-url <index of torch's CPU builds>"

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
FUZZ_ARGS ?= --count 20000

BIN := $(VENV)/bin
ASAN := .venv-asan
PIP_INSTALL := -m pip install --disable-pip-version-check --quiet -c constraints.txt $(PIP_ARGS)
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
BUILD := --no-build-isolation --no-deps
SOURCES := $(shell find csrc src -type f -not -path '*/__pycache__/*' -not -name '*.so')
RUNTIME := import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]
MODELS := smollm2-135m qwen2.5-coder-0.5b gemma3-270m
PROMPT := Write a Python function that returns the n-th Fibonacci number.

.PHONY: demo test check fuzz clean

demo: $(VENV)/.installed
	$(BIN)/blockdraft pull smollm2-135m
	$(BIN)/blockdraft run "$(PROMPT)" -m smollm2-135m -n 192 --temp 0 --compare

test: $(VENV)/.installed $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test -n auto
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test -n auto -m "slow and not model and not gpu"
	for model in $(MODELS); do $(BIN)/blockdraft pull $$model || exit 1; done
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test -m "model and not slow and not gpu"

# Nothing of it runs the package, so the native core is not built for it.
check: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

fuzz: $(ASAN)/.installed
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	$(ASAN)/bin/python scripts/fuzz_gguf $(FUZZ_ARGS)

clean:
	rm -rf build dist $(VENV) $(ASAN)

# An environment with the build tools and the package's dependencies, then the package: with the
# tools at hand a second build compiles only what changed.
%/.tools: constraints.txt pyproject.toml
	$(PYTHON) -m venv $*
	$*/bin/python $(PIP_INSTALL) $(BUILD_TOOLS)
	$*/bin/python $(PIP_INSTALL) $$($*/bin/python -c '$(RUNTIME); print(*p["dependencies"])')
	touch $@

$(VENV)/.installed: $(VENV)/.tools CMakeLists.txt README.md LICENSE $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python $(PIP_INSTALL) $(BUILD) .
	touch $@

# z-lab's dflash pins other versions of what it needs than our tools do, and works with ours.
$(VENV)/.dev: $(VENV)/.tools
	$(BIN)/python $(PIP_INSTALL) \
	    $$($(BIN)/python -c '$(RUNTIME); print(*p["optional-dependencies"]["dev"])')
	$(BIN)/python $(PIP_INSTALL) --no-deps \
	    $$($(BIN)/python -c '$(RUNTIME); print(*p["optional-dependencies"]["oracles"])')
	touch $@

$(ASAN)/.installed: $(ASAN)/.tools CMakeLists.txt $(SOURCES)
	PATH="$(CURDIR)/$(ASAN)/bin:$$PATH" $(ASAN)/bin/python $(PIP_INSTALL) $(BUILD) \
	    -C build-dir=build/sanitize -C install.strip=false \
	    -C cmake.define.BLOCKDRAFT_SANITIZE=ON .
	touch $@

.PRECIOUS: %/.tools
