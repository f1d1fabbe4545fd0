# The two commands of the README are `make train` and `make test`; `make env` is their common part.
SHELL := /bin/sh
BIN := $(CURDIR)/.venv/bin
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c "$(SUITABLE)" >/dev/null 2>&1 && { command -v $$python; break; }; done)
NP ?= 2
ifndef NAME
NAME := captcha-$(shell date +%Y%m%d-%H%M%S)
endif
IMAGES := datasets/captcha-images
DATA := datasets/captcha

.PHONY: help env train test lint bare
help:
	@echo "make train   train a captcha recogniser on $(NP) ranks; each time a new run in runs/"
	@echo "make test    run all tests"
	@echo "make env     build .venv with TensorFlow, MPI and Horovod (part of both)"
	@echo "make lint    check style, types and which module may import which"
	@echo "make bare    prove both commands on a bare Debian, as root; takes half an hour"
	@echo "make fuzz    feed 4 x 50,000 damaged inputs to data_tools; takes five minutes"
	@echo "make kill-points  kill conversions at every system call that changes a disk; needs strace"
	@echo "make kill-checkpoints  kill writers of checkpoints, and trainers; needs strace"
	@echo "make full-disk    convert to disks of 32 sizes, as root"
	@echo "make rank-accuracy  train CIFAR-10 on 1, 2 and 4 ranks; takes a quarter of an hour"
	@echo "make rank-grid    train on 1 to 41 examples, several batches and 1 to 4 ranks"
	@echo "make soak    break runs over two hosts in 8 ways, 20 times each, as root; takes hours"
	@echo "make doctor-faults  plant faults on hosts and time hvd_train doctor, as root"
	@echo "make mpi-matrix   start ranks under each launcher and MPI, and tell what is read"
	@echo "make memory-slope train 6,000 steps on 2 ranks and tell how their memory grows"

env: .venv/ready

.venv/ready: requirements.txt tools/build_horovod.py setup.cfg
	@test -n "$(PYTHON)" || { echo "error: CONFIG: python3: no Python 3.11 to 3.13 with venv;" \
		"apt-get install python3-venv, or make PYTHON=/path/to/python3" >&2; exit 2; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -r requirements.txt
	$(BIN)/python tools/build_horovod.py
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(IMAGES): | .venv/ready
	$(BIN)/data_tools make-captcha $@ --count 6000 --seed 0

$(DATA): | $(IMAGES)
	$(BIN)/data_tools captcha-to-tfrecord $(IMAGES) $(IMAGES)/labels.csv $@

train: env | $(DATA)
	PATH="$(BIN):$$PATH" horovodrun -np $(NP) python hvd_train/captcha.py --name $(NAME)
	@echo "the run is in runs/$(NAME), its result in runs/$(NAME)/eval.json"

test: env
	$(BIN)/python -m pytest

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bare:
	tools/bare.sh

fuzz: env
	$(BIN)/python benchmarks/fuzz.py --cases 50000 --save

kill-points: env
	$(BIN)/python benchmarks/kill_points.py --save

kill-checkpoints: env
	$(BIN)/python benchmarks/kill_checkpoints.py --save

full-disk: env
	$(BIN)/python benchmarks/full_disk.py --save

rank-accuracy: env
	$(BIN)/python benchmarks/rank_accuracy.py --save

rank-grid: env
	$(BIN)/python benchmarks/rank_grid.py --save

doctor-faults: env
	$(BIN)/python benchmarks/doctor_faults.py --save

memory-slope: env
	$(BIN)/python benchmarks/memory_slope.py --save

soak: env
	$(BIN)/python benchmarks/soak.py --save

mpi-matrix: env
	$(BIN)/python benchmarks/mpi_matrix.py --save
