# Fairlead. `make help` lists what there is to do.
SHELL := /usr/bin/env bash
.DEFAULT_GOAL := help

MODULES  := pkg proto samples services/ca services/config-watcher services/installer services/node-agent services/xds-server tests tools/image
SERVICES := ca config-watcher node-agent xds-server
MAINS    := $(foreach s,$(SERVICES),./services/$(s)/cmd/$(s)) ./services/installer/cmd/fairlead ./samples/bookinfo
BIN      := $(CURDIR)/bin
TOOLS    := $(CURDIR)/.tools
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := -X fairlead.dev/pkg/version.Version=$(VERSION)
PATTERNS := $(MODULES:%=./%/...)
# tests/ runs the binaries of bin/, which go's test cache does not see: those always run.
CACHED   := $(filter-out ./tests/...,$(PATTERNS))
TESTENV  := BIN_DIR=$(BIN) ENVOY=$(TOOLS)/envoy
RUN_DIR  ?= .run
# Loopback addresses of `make up`: a range, or auto for one that no other mesh uses.
LOOPBACK ?= 127.66.0.0/16
TESTFLAGS ?=
TIMES    ?= 1
# What a sample is chosen by.
COMMIT   = $(shell git rev-parse HEAD 2>/dev/null || echo none)
SCENARIOS_OUT = .run/scenarios$(if $(ON_DEMAND),-on-demand)

export PATH := $(TOOLS)/bin:$(PATH)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

tools: $(TOOLS)/envoy ## put the pinned Envoy binary into .tools/ (ENVOY=/path uses yours)

.PHONY: $(TOOLS)/envoy
$(TOOLS)/envoy:
	@tools/envoy/install.sh $@

grpcjs: $(TOOLS)/grpcjs/.installed ## gRPC for Node.js, which some end-to-end tests run; nothing where there is no npm

$(TOOLS)/grpcjs/.installed: tools/grpcjs/package.json tools/grpcjs/package-lock.json
	@if ! command -v npm >/dev/null; then echo "no npm: tests with gRPC for Node.js will be skipped" >&2; exit 0; fi; \
	mkdir -p $(@D) && cp $^ $(@D) && cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@

# Tools that only developers need are built from their pinned modules when a target asks for one.
$(TOOLS)/bin/.%: tools/%/go.mod tools/%/go.sum
	@mkdir -p $(TOOLS)/bin
	cd tools/$* && GOWORK=off go build -trimpath -o $(TOOLS)/bin/ tool
	@touch $@

build: ## build every binary into bin/
	@CGO_ENABLED=0 hack/build.sh $(BIN) -trimpath -ldflags '$(LDFLAGS)' -- $(MAINS)

demo: tools build ## the whole mesh on this machine: traffic, a change, failures, renewal; exit 1 if anything differs
	$(BIN)/fairlead demo --envoy $(TOOLS)/envoy --mesh samples/bookinfo/mesh.yaml

up: tools build ## the sample mesh, until Ctrl-C or `make down`; prints its URL. LOOPBACK=auto RUN_DIR=x: one more beside it
	$(BIN)/fairlead up --envoy $(TOOLS)/envoy --run-dir $(RUN_DIR) --loopback-range $(LOOPBACK) -f samples/bookinfo/mesh.yaml

down: ## end what `make up` started
	$(BIN)/fairlead down --run-dir $(RUN_DIR)

test: tools grpcjs build ## unit, in-process and end-to-end tests with the real Envoy; needs no privileges
	$(TESTENV) go test $(TESTFLAGS) $(CACHED)
	$(TESTENV) go test -count=1 $(TESTFLAGS) ./tests/...

test-race: race-modules race-e2e ## the same under the race detector, the services of the end-to-end tests included

# The random histories of DIFFERENTIAL are the same code over and over: a tenth of them shows the detector what it can
# see. The other packages that it is spared have nothing concurrent (hack/concurrent.sh).
DIFFERENTIAL := ./services/xds-server/internal/differential
race-modules: tools build
	$(TESTENV) go test -race $(TESTFLAGS) $$(hack/concurrent.sh $(filter-out tests,$(MODULES)) | grep -vx $(DIFFERENTIAL))
	$(TESTENV) go test -race $(TESTFLAGS) $(DIFFERENTIAL) -rapid.checks=10

race-e2e: tools grpcjs build
	@mkdir -p $(BIN)/race
	go build -race -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/race/ $(MAINS)
	$(TESTENV) BIN_DIR=$(BIN)/race go test -race -count=1 $(TESTFLAGS) ./tests/...

scenarios: tools build ## every traffic scenario on real Envoys, TIMES=n in a row, ON_DEMAND=1: sidecars on demand; needs root or user namespaces
	cd tests && $(TESTENV) go test -count=$(TIMES) -timeout 60m $(TESTFLAGS) ./scenarios -dir cases,examples -out $(CURDIR)/$(SCENARIOS_OUT) $(if $(ON_DEMAND),-on-demand) $(if $(SHARE),-share $(SHARE) -share-by $(COMMIT))
	@cat $(SCENARIOS_OUT)/summary.txt

attacks: tools build ## attack whole meshes: memory limits of deploy/, what others notice, what is learnt; the full-disk attack needs root
	cd tests && $(TESTENV) go test -count=1 -timeout 15m $(TESTFLAGS) ./e2e/attack -all -v

oracle: build ## istioctl's verdicts on thousands of objects, compared with ours; the first run builds istioctl into a cache
	istio=$$(tools/istio/build.sh) && cd tests && ISTIO_BIN=$$istio BIN_DIR=$(BIN) go test -count=1 -v $(TESTFLAGS) ./oracle

mutants: tools build ## breaks xds-server in ten ways, each of which some scenario must notice; SAMPLE=n: the commit's n of them
	$(TESTENV) go run ./tests/mutants $(if $(SAMPLE),-sample $(SAMPLE) -seed $(COMMIT))

test-unprivileged: tools build ## tests that touch users, namespaces or modes, as a user without privileges, with and without namespaces; needs root
	ENVOY=$(TOOLS)/envoy hack/unprivileged.sh

# Files whose prose ends at column 120 (tests/prose); '*.go' and '*.proto' check comments.
PROSE := '*.md' '*.go' '*.proto'
lint: $(TOOLS)/bin/.golangci-lint $(TOOLS)/bin/.buf ## golangci-lint over all modules (dependency rule included), buf lint, prose at 120 columns
	golangci-lint run --allow-parallel-runners $(PATTERNS)
	cd proto && buf lint && buf format --diff --exit-code
	git ls-files -z $(PROSE) | xargs -0 go run ./tests/prose

generate: $(TOOLS)/bin/.buf $(TOOLS)/bin/.protoc ## Go code of proto/
	cd proto && buf generate

golden: ## rewrite the golden files of the translators, of the reference pages and of random objects; review the difference
	go test ./tests/oracle -run TestPage -update
	go test ./services/xds-server/internal/translate -update
	go test ./tests/scenarios -run TestTrafficAPIPage -update
	go test ./services/config-watcher/internal/validate -run TestAcceptedSeeds -update
	go test ./services/config-watcher/internal/analyze -run 'TestReferencePage|TestScenarios' -update
	go test ./services/installer/internal/cli -run 'TestReference$$' -update

bench: build ## every benchmark once, and xds-server against its floor in the short form; exit 1 if a goal is missed that is claimed
	go test -run '^$$' -bench . -benchtime 1x $$(grep -rl --include='*_test.go' '^func Benchmark' $(MODULES:%=./%) | xargs -n1 dirname | sort -u)
	go run ./tests/bench/cmd/bench -bin $(BIN)

bench-full: build ## xds-server against its floor in the long form; writes the table of docs/performance.md
	go run ./tests/bench/cmd/bench -bin $(BIN) -full -realtime=$(if $(filter 0,$(shell id -u)),true,false) -page docs/performance.md

verify: lint $(TOOLS)/bin/.protoc ## generated code fresh, modules tidy, one version of every dependency, contracts unbroken, lint
	hack/verify.sh

.PHONY: stock
stock: tools build ## Istio's own pilot-agent and istioctl in a whole mesh; the first run builds them into a cache
	istio=$$(tools/istio/build.sh) && module=$$(cd tools/istio && GOWORK=off go mod download -json istio.io/istio | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p') && \
	cd tests && $(TESTENV) ISTIO_BIN=$$istio ISTIO_BOOTSTRAP=$$module/tools/packaging/common/envoy_bootstrap.json \
	  go test -count=1 -v $(TESTFLAGS) -run TestStock ./e2e/thirdparty

images: tools build ## an image archive per service in bin/, without a Docker daemon
	@for s in $(SERVICES); do \
	  add=; [ $$s = node-agent ] && add="-add $$(readlink -f $(TOOLS)/envoy)=/usr/local/bin/envoy"; \
	  go run ./tools/image -binary $(BIN)/$$s -name fairlead/$$s:$(VERSION) $$add -out $(BIN)/$$s.tar || exit 1; \
	done

clean: ## remove what was built
	rm -rf $(BIN) $(RUN_DIR)

.PHONY: help tools grpcjs build demo up down test test-race race-modules race-e2e lint generate golden bench bench-full scenarios attacks oracle stock mutants test-unprivileged verify images clean
