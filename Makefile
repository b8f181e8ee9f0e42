# Everything runs in .venv, which is made on first use and made again when the requirements change.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# two at a time; small networks gain nothing from more threads
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile
PEERS := aedat==2.3.0 expelliarmus==1.1.12 loguru==0.7.3 nirtorch==2.6 norse==1.1.0 snntorch==1.0.0 \
	spikingjelly==2.0.0 tonic==1.7.0 tqdm==4.67.1

.PHONY: demo docs test test-slow test-kills test-package test-peers test-gpu check attack attack-full attack-fuzz bench clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable ".[dev]"
	touch $@

demo: .venv/installed  ## train a small spiking network on the embedded digits
	$(BIN)/rheobase demo

docs: .venv/installed  ## make the documentation site in build/site
	$(PIP) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test: .venv/installed  ## run the tests but for the slow ones
	$(PYTEST) -m "not slow"

test-slow: .venv/installed  ## run the slow tests: whole commands, several processes, long trainings
	$(PYTEST) -m slow

test-kills: .venv/installed  ## kill and resume a run at 100 random moments
	RHEOBASE_KILLS=100 $(BIN)/pytest tests/train/test_resuming.py -k kills

test-peers: .venv/installed  ## install faery, numba, Triton, ONNX, MkDocs and the peer libraries, and run the tests that need them
	$(PIP) --editable ".[dev,docs,events,imagenet,kernels,onnx]"
	$(PIP) --no-deps $(PEERS)
	$(PYTEST) -m "not slow" tests/kernels tests/conformance tests/cli/test_deploy.py tests/deploy tests/data tests/docs/test_features.py tests/tools/test_pages.py

test-package: .venv/installed  ## build wheel and sdist, install them into an empty environment and use them there
	$(PIP) build
	$(BIN)/python -m tools.package

test-gpu: .venv/installed  ## run the tests of kernels, training and deployed networks on this machine's GPU
	$(BIN)/pytest tests/kernels tests/nn tests/deploy/test_network.py tests/tasks/test_gradients.py tests/tasks/test_sweep.py \
		tests/train/test_capture.py tests/train/test_evaluation.py tests/train/test_rehearsal.py
	$(BIN)/pytest tests/train/test_loop.py tests/train/test_resuming.py tests/train/test_distributed.py tests/train/test_freezing.py \
		tests/train/test_waking.py tests/train/test_writing.py tests/benchmarks/test_benchmarks.py -k gpu

check: .venv/installed  ## lint, format, types, and that published numbers can be checked
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.check_results

attack: .venv/installed  ## damage files, kill and starve runs, and see that nothing breaks; a few minutes at most
	OMP_NUM_THREADS=1 $(BIN)/python -m attack

attack-full: .venv/installed  ## the same at the size that is published
	OMP_NUM_THREADS=1 $(BIN)/python -m attack --full --out results/attack.json

attack-fuzz: .venv/installed  ## fuzz the readers by coverage, with atheris
	$(PIP) atheris
	OMP_NUM_THREADS=1 $(BIN)/python -m attack --only fuzz --full --out results/fuzz.json

bench: .venv/installed  ## time a training step against the peers that are installed
	$(BIN)/python -m benchmarks.step

clean:
	rm -rf .venv build dist runs .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
