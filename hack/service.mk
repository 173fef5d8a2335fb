# The targets of one service: `make -C services/NAME test image`. The Makefile of a service includes this file; one that
# needs no more may be without: make -C services/NAME -f ../../hack/service.mk. Before the include, IMAGES names the
# archives, by default one called as the service; BINARY_<image> the program of one that is called otherwise, and
# ARGS_<image> further arguments of tools/image.
SHELL := /usr/bin/env bash
.DEFAULT_GOAL := help

SERVICE := $(notdir $(CURDIR))
ROOT    := $(abspath $(CURDIR)/../..)
BIN     ?= $(ROOT)/bin
ENVOY   ?= $(ROOT)/.tools/envoy
VERSION ?=
LDFLAGS  = $(shell cd $(ROOT) && hack/ldflags.sh $(VERSION))
IMAGES  ?= $(SERVICE)
# By default the image's tag is the version of the service.
IMAGE_TAG ?= $(or $(shell sed -n 's/.*[ ,=]$(SERVICE)=\([^, ]*\).*/\1/p' <<<'$(LDFLAGS)'),$(shell sed -n 's/.*version.Version=\([^ ]*\).*/\1/p' <<<'$(LDFLAGS)'))
TESTFLAGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the service's programs, into bin/
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

test: ## the tests of the service's module, and no other's
	@$(MAKE) --no-print-directory -C $(ROOT) tools
	ENVOY=$(ENVOY) go test $(TESTFLAGS) ./...

image: build ## the service's image archives, into bin/, without a Docker daemon
	@$(if $(IMAGES),go build -trimpath -o $(BIN)/cluster/image $(ROOT)/tools/image,echo "$(SERVICE) has no image")
	@$(foreach i,$(IMAGES),$(BIN)/cluster/image -binary $(BIN)/$(or $(BINARY_$i),$i) -name fairlead/$i:$(IMAGE_TAG) -out $(BIN)/$i.tar $(ARGS_$i) &&) true

version: ## the version that a build has now
	@echo $(IMAGE_TAG)

.PHONY: help build test image version
