# Fairlead. `make help` lists what there is to do.
SHELL := /usr/bin/env bash
.DEFAULT_GOAL := help

MODULES  := pkg proto samples services/ca services/ca/kms services/config-watcher services/installer services/node-agent services/xds-server tests tools/image
SERVICES := ca config-watcher node-agent xds-server
MAINS    := $(foreach s,$(SERVICES),./services/$(s)/cmd/$(s)) ./services/node-agent/cmd/fairlead-cni ./services/installer/cmd/fairlead ./services/installer/cmd/fairlead-injector ./services/installer/cmd/fairlead-keeper ./services/installer/cmd/fairlead-gateways ./samples/bookinfo
BIN      := $(CURDIR)/bin
TOOLS    := $(CURDIR)/.tools
# Of the whole; a service may have a version of its own (hack/ldflags.sh).
VERSION  ?= $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := $(shell hack/ldflags.sh $(VERSION))
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
SCENARIO_DIRS = cases,examples,gatewayapi
SCENARIOS_OUT = .run/scenarios$(if $(TENANTS),-tenants)$(if $(ON_DEMAND),-on-demand)$(if $(SOURCE),-$(SOURCE))$(if $(CERTS),-certs-$(CERTS))$(if $(REDIRECT),-$(REDIRECT))$(if $(CA),-ca-$(CA))

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

# Clouds whose keys ca-kms can use; each costs 5 to 15 MB.
KMS_CLOUDS ?= awskms cloudkms azurekms
kms: ## bin/ca-kms, the ca's helper for keys in PKCS#11 tokens and clouds, which no other target builds; needs a C compiler; KMS_CLOUDS= for tokens alone
	@mkdir -p $(BIN)
	@CGO_ENABLED=1 go build -trimpath -ldflags '-s -w $(LDFLAGS)' -tags 'netgo osusergo $(KMS_CLOUDS)' -o $(BIN)/ ./services/ca/kms/cmd/ca-kms

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
# see. The other packages that it is spared have nothing concurrent (hack/concurrent.sh). SHARE=n: the commit's one in n
# of the rest.
DIFFERENTIAL := ./services/xds-server/internal/differential
race-modules: tools build
	$(TESTENV) go test -race $(TESTFLAGS) $$(hack/concurrent.sh $(filter-out tests,$(MODULES)) | grep -vx $(DIFFERENTIAL) | hack/share.sh "$(SHARE)" $(COMMIT))
	$(TESTENV) go test -race $(TESTFLAGS) $(DIFFERENTIAL) -rapid.checks=10

race-e2e: tools grpcjs build
	@mkdir -p $(BIN)/race
	go build -race -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/race/ $(MAINS)
	$(TESTENV) BIN_DIR=$(BIN)/race go test -race -count=1 $(TESTFLAGS) ./tests/...

# Tests of directories by name, as a pattern of go test: with SHARE, the commit's one in so many.
names = $$(grep -rho --include='*_test.go' '^func $(2)[A-Za-z0-9_]*' $(1) | cut -d' ' -f2 | grep -vx TestMain | sort -u | hack/share.sh $(SHARE) $(COMMIT) | paste -sd'|')
KUBE_TESTS := kube scenarios/internal/apiserver
# What an attacker tries runs for each commit.
KUBE_ALWAYS := TestAStolenTokenDoesNothingButItsOwn|TestNothingCanTalkToTheKeeper|TestTheKeeperBindsTwoRoles|TestForgedInventoriesCountForNothing
test-kube: tools build ## tests against a real Kubernetes API server, SHARE=n: the commit's one in n of them, and those of attacks; the first run builds Kubernetes and etcd into a cache
	$(if $(SHARE),names=$(call names,$(KUBE_TESTS:%=tests/%),Test) && )kube=$$(tools/build-cached.sh kubernetes etcd) && istio=$$(tools/build-cached.sh istio) && \
	cd tests && $(TESTENV) KUBE_BIN=$$kube ISTIO_BIN=$$istio go test -count=1 -v -timeout 30m $(TESTFLAGS) $(if $(SHARE),-run "^($$names|$(KUBE_ALWAYS))$$") $(KUBE_TESTS:%=./%/...)

# CHANGES random changes on both sides.
CHANGES ?= 100
mcp: build ## istiod and config-watcher read each other by MCP over xDS: CHANGES random changes, then equal objects; BENCH=1: what 10,000 ServiceEntries cost. The first run builds Kubernetes, etcd and Istio into a cache
	kube=$$(tools/build-cached.sh kubernetes etcd) && istio=$$(tools/build-cached.sh istio) && \
	cd tests && $(TESTENV) KUBE_BIN=$$kube ISTIO_BIN=$$istio MCP_CHANGES=$(CHANGES) go test -count=1 -v -timeout 30m $(TESTFLAGS) ./kube/mcp
	$(if $(BENCH),cd services/config-watcher && MCP_BENCH=1 go test -count=1 -v -run TestGoals ./internal/source/mcp ./internal/mcpserver)

# With SOURCE, the scenarios alone: the other tests of the package do not read objects from there.
scenarios: tools build ## every traffic scenario on real Envoys, TIMES=n in a row, ON_DEMAND=1: sidecars on demand, SOURCE=kubernetes: objects through an API server, CERTS=files: agents with mounted certificates, REDIRECT=iptables: rules of iptables, TENANTS=1: attacks of tenants on each other in a mesh that separates them, CA=second: a ca that the tests bring; needs root or user namespaces
	$(if $(CA),$(MAKE) second-ca)
	$(if $(SOURCE),kube=$$(tools/build-cached.sh kubernetes etcd) && )cd tests && $(TESTENV) $(if $(CA),BIN_DIR=$(BIN)/ca-$(CA)) $(if $(SOURCE),KUBE_BIN=$$kube) go test -count=$(TIMES) -timeout 60m $(TESTFLAGS) ./scenarios $(if $(SOURCE),-run 'TestScenarios$$' -source $(SOURCE)) $(if $(TENANTS),-dir tenants -tenants,-dir $(SCENARIO_DIRS)) -out $(CURDIR)/$(SCENARIOS_OUT) $(if $(ON_DEMAND),-on-demand) $(if $(CERTS),-certificates $(CERTS)) $(if $(REDIRECT),-redirect $(REDIRECT)) $(if $(SHARE),-share $(SHARE) -share-by $(COMMIT))
	@cat $(SCENARIOS_OUT)/summary.txt

# The programs with tests/internal/secondca in the place of the ca.
second-ca:
	@mkdir -p $(BIN)/ca-second && ln -sf $(addprefix ../,config-watcher node-agent xds-server fairlead) $(BIN)/ca-second/
	@CGO_ENABLED=0 go build -trimpath -o $(BIN)/ca-second/ca ./tests/internal/secondca

.PHONY: second-ca rotations
rotations_short := TestTheRigSeesAnotherRoot|TestNobodyNoticesSwapsAndRotations|TestEverySignerServes|TestARotationWithAnAgentThatWatches
# LONG=1: every kind of signer, three rotations, rotations that are given up, an agent that is stopped.
rotations: tools build kms ## the ca's signer is swapped and its root rotated under load, with sidecars of ours and of Istio's, a proxyless program and a machine: three kinds and a rotation, LONG=1: all, forwards and back; needs root or user namespaces
	istio=$$(tools/build-cached.sh istio) && step=$$(tools/build-cached.sh stepca) && vault=$$(tools/build-cached.sh vault) && \
	module=$$(cd tools/istio && GOWORK=off go mod download -json istio.io/istio | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p') && \
	cd tests && $(TESTENV) ISTIO_BIN=$$istio ISTIO_BOOTSTRAP_TEMPLATE=$$module/tools/packaging/common/envoy_bootstrap.json \
	  STEPCA_BIN=$$step VAULT_BIN=$$vault go test -count=1 -v -timeout 90m $(TESTFLAGS) ./e2e/rotations $(if $(RATE),-rate $(RATE)) $(if $(LONG),-long,-run '$(rotations_short)')

removals: tools build ## servers that go under load on this machine, whatever their applications do then, TIMES=n of them; needs root or user namespaces
	cd tests && $(TESTENV) go test -count=1 -timeout 60m $(TESTFLAGS) ./scenarios -run TestRemovals -v -removals $(if $(findstring command line,$(origin TIMES)),$(TIMES),100)

attacks: tools build ## attack whole meshes: memory limits of deploy/, what others notice, what is learnt; the full-disk attack needs root
	cd tests && $(TESTENV) go test -count=1 -timeout 15m $(TESTFLAGS) ./e2e/attack -all -v

oracle: tools build ## istioctl's verdicts on thousands of objects, decisions by istiod's filters in Envoy, and statuses of the Gateway API and answers of its gateways, compared with ours, LONG=1: those of 1,000 random sets of policies; the first run builds istioctl into a cache
	istio=$$(tools/build-cached.sh istio) && cd tests && ISTIO_BIN=$$istio BIN_DIR=$(BIN) go test -count=1 -v $(TESTFLAGS) ./oracle && \
	  ISTIO_BIN=$$istio BIN_DIR=$(BIN) go test -count=1 -v $(INSTALLFLAGS) ./oracle/install && \
	  ISTIO_BIN=$$istio BIN_DIR=$(BIN) go test -count=1 -v -timeout 30m $(INJECTFLAGS) ./oracle/inject
	istio=$$(tools/build-cached.sh istio) && module=$$(cd tools/istio && GOWORK=off go list -m -f '{{.Dir}}' istio.io/istio) && cd tests && \
	  $(TESTENV) ISTIO_BIN=$$istio ISTIO_AUTHZ_TESTDATA=$$module/pilot/pkg/security/authz/builder/testdata \
	  go test -count=1 -v -timeout 60m $(DECISIONFLAGS) ./oracle/decisions $(if $(LONG),-drawn 1000)
	istio=$$(tools/build-cached.sh istio) && manifests=$$(cd tools/istio && GOWORK=off go list -m -f '{{.Dir}}' istio.io/istio)/manifests && \
	  ISTIO_BIN=$$istio ISTIO_MANIFESTS=$$manifests go test -count=1 -v -run 'TestChartsRenderTheSame|TestCommandsOfIstioctl' ./services/installer/internal/install/migrate ./services/installer/internal/cli && \
	  ISTIO_BIN=$$istio go test -count=1 -v -run TestAgentSettings ./services/node-agent/internal/command
	kube=$$(tools/build-cached.sh kubernetes etcd) && istio=$$(tools/build-cached.sh istio) && \
	  module=$$(cd tools/istio && GOWORK=off go list -m -f '{{.Dir}}' istio.io/istio) && cd tests && \
	  $(TESTENV) KUBE_BIN=$$kube ISTIO_BIN=$$istio ISTIO_GATEWAY_TESTDATA=$$module/pilot/pkg/config/kube/gateway/testdata \
	  go test -count=1 -v -timeout 20m $(GATEWAYFLAGS) ./oracle/gatewayapi
	suite=$$(cd tests/conformance && GOWORK=off go mod download -json sigs.k8s.io/gateway-api/conformance | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p') && \
	  GATEWAY_API_CONFORMANCE=$$suite go test -count=1 -v -run TestSuite ./services/config-watcher/internal/gatewayapi

mutants: tools build ## breaks the code in one place at a time, which some test must notice; SAMPLE=n: the commit's n of them
	$(TESTENV) go run ./tests/mutants $(if $(SAMPLE),-sample $(SAMPLE) -seed $(COMMIT))

skew: tools build ## services of this release and of the previous one (the commit in tests/e2e/skew/PREVIOUS) in one mesh, upgrade and rollback; needs root or user namespaces. The first run builds the previous ones into a cache
	previous=$$(hack/previous.sh) && cd tests && $(TESTENV) PREVIOUS_BIN=$$previous go test -count=1 -v $(TESTFLAGS) ./e2e/skew

test-unprivileged: tools build ## tests that touch users, namespaces or modes, as a user without privileges, with and without namespaces, SHARE=n: the commit's one in n of the packages; needs root
	ENVOY=$(TOOLS)/envoy hack/unprivileged.sh $$(hack/unprivileged.sh -l | hack/share.sh "$(SHARE)" $(COMMIT))

# Files whose prose ends at column 120, and Go code at 140 (tests/prose); '*.go' and '*.proto' check comments.
PROSE := '*.md' '*.go' '*.proto'
lint: $(TOOLS)/bin/.golangci-lint $(TOOLS)/bin/.buf ## golangci-lint over all modules (dependency rule included), buf lint, prose at 120 columns, code at 140
	golangci-lint run --allow-parallel-runners $(PATTERNS)
	cd proto && buf lint && buf format --diff --exit-code
	git ls-files -z $(PROSE) | xargs -0 go run ./tests/prose

generate: $(TOOLS)/bin/.buf $(TOOLS)/bin/.protoc ## Go code of proto/, the list of Envoy's packages in pkg/envoyapi, the CustomResourceDefinitions of charts/base, the schemas of the Gateway API that config-watcher evaluates, shared templates of charts, the operator's rights, docs/reference/install-settings.md, the tables of alerts in docs/runbooks, deploy/kustomize
	cd proto && buf generate
	go test ./pkg/envoyapi -run TestEveryTypeIsKnown -update
	hack/crds.sh services/installer/manifests/charts/base/files services/config-watcher/internal/validate/gatewayapi/schemas
	go test ./services/installer/manifests -run 'TestSharedTemplates|TestSettingsPage|TestOperatorRights|TestRights' -update
	go test ./tests/alerts -run TestRunbooks -update
	go test ./tests/ownership -run TestPackageListsAreCurrent -update
	go run ./services/installer/manifests/kustomize deploy/kustomize

golden: ## rewrite the golden files of the translators, of the reference pages and of random objects; review the difference
	go test ./tests/oracle ./tests/oracle/install ./tests/oracle/inject ./tests/oracle/decisions ./tests/oracle/gatewayapi ./services/node-agent/internal/command -run TestPage -update
	go test ./services/ca/internal/signer/cacerts -run TestPage -update
	go test ./services/xds-server/internal/translate -update
	go test ./tests/scenarios -run TestAPIPages -update
	go test ./services/config-watcher/internal/validate -run TestAcceptedSeeds -update
	go test ./services/config-watcher/internal/analysis/running -run TestScenarios -update
	go test ./services/config-watcher/internal/analysis/finding -run TestReferencePage -update
	go test ./services/config-watcher/internal/analysis/whole -run TestCases -update
	go test ./services/installer/internal/cli -run 'TestReference$$' -update
	go test ./services/installer/manifests -update

bench: build ## every benchmark once (SHARE=n: in the commit's one in n of the packages), and xds-server against its floor in the short form; exit 1 if a goal is missed that is claimed, or a row is not as docs/performance.md says
	go test -run '^$$' -bench . -benchtime 1x $$(grep -rl --include='*_test.go' '^func Benchmark' $(MODULES:%=./%) | xargs -n1 dirname | sort -u | hack/share.sh "$(SHARE)" $(COMMIT))
	go run ./tests/bench/cmd/bench -bin $(BIN) -against docs/performance.md
	$(MAKE) bench-agent

bench-policies: tools build ## what policies cost a request in Envoy, beside Istio's own filters, and what they leave in its memory; exit 1 if a goal is missed. The first run builds Istio
	istio=$$(tools/build-cached.sh istio) && cd tests && $(TESTENV) ISTIO_BIN=$$istio go test -count=1 -v -run TestCostOfARequest ./oracle/decisions
	cd tests && $(TESTENV) go test -count=1 -v $(TESTFLAGS) -run TestPoliciesLeaveNothing ./e2e/policies

bench-agent: tools build ## node-agent beside Istio's pilot-agent in one mesh of 1,000 services; exit 1 if a goal is missed that is claimed. The first run builds Istio
	istio=$$(tools/build-cached.sh istio) && module=$$(cd tools/istio && GOWORK=off go mod download -json istio.io/istio | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p') && \
	cd tests && $(TESTENV) ISTIO_BIN=$$istio ISTIO_BOOTSTRAP=$$module/tools/packaging/common/envoy_bootstrap.json \
	  go test -count=1 -v $(TESTFLAGS) -run TestBesideStockAgent ./e2e/thirdparty

.PHONY: bench-ca
bench-ca: build ## what an issued certificate costs the ca, beside a floor, istiod, step-ca and SPIRE on the same core; exit 1 if a goal is missed. The first run builds the three
	istio=$$(tools/build-cached.sh istio) && step=$$(tools/build-cached.sh stepca) && spire=$$(tools/build-cached.sh spire) && \
	  go build -o $(BIN)/bench/ca ./tests/bench/ca && $(BIN)/bench/ca -ca $(BIN)/ca -istiod $$istio/pilot-discovery -step-ca $$step/step-ca \
	  -spire $$spire/spire-server -realtime=$(if $(filter 0,$(shell id -u)),true,false)

.PHONY: fuzz
fuzz: ## every fuzz target of the ca, of policies and keys, of Consul, and of what they read with, FUZZTIME=20s each; FUZZ=dir...: those below other directories
	FUZZTIME=$(FUZZTIME) hack/fuzz.sh $(FUZZ)
FUZZTIME ?= 20s
FUZZ ?= services/ca proto/fairlead pkg/auth pkg/authz pkg/clusterkeys pkg/jwks pkg/tlsconf pkg/yamltext services/config-watcher/internal/jwks services/config-watcher/internal/source/consul

bench-full: build ## xds-server against its floor in the long form; writes the table of docs/performance.md
	go run ./tests/bench/cmd/bench -bin $(BIN) -full -realtime=$(if $(filter 0,$(shell id -u)),true,false) -page docs/performance.md

# SIZE=small is a tenth of the mesh, with shorter measurements.
SIZE ?= full
bench-kube: build ## Fairlead beside istiod in one Kubernetes API server; SIZE=small: a tenth of the mesh. The first run builds Kubernetes and Istio
	kube=$$(tools/build-cached.sh kubernetes etcd) && istio=$$(tools/build-cached.sh istio) && KUBE_BIN=$$kube ISTIO_BIN=$$istio \
	  go run ./tests/bench/cmd/bench -bin $(BIN) -rows kube $(if $(filter full,$(SIZE)),-full -page docs/performance.md)

.PHONY: bench-gateway
bench-gateway: tools build ## a Gateway with 3,000 HTTPRoutes, served by Fairlead and beside it by istiod through a real Envoy; SIZE=small: with shorter measurements. The first run builds Kubernetes and Istio
	kube=$$(tools/build-cached.sh kubernetes etcd) && istio=$$(tools/build-cached.sh istio) && KUBE_BIN=$$kube ISTIO_BIN=$$istio \
	  go run ./tests/bench/cmd/bench -bin $(BIN) -rows gateway -envoy $(TOOLS)/envoy $(if $(filter full,$(SIZE)),-full -page docs/performance.md)

.PHONY: bench-consul
bench-consul: build ## config-watcher with a registry of 10,000 services and 100,000 instances in Consul; SIZE=small: a fifth of them, with shorter measurements
	go run ./tests/bench/cmd/bench -bin $(BIN) -rows consul $(if $(filter full,$(SIZE)),-full -page docs/performance.md)

everything: ## the core and all of every suite of CONTRIBUTING.md, without samples, FROM=NAME: beginning at a suite; several hours, as root
	ALL=1 .ci/run

verify: lint $(TOOLS)/bin/.protoc ## generated code fresh, modules tidy, one version of every dependency, contracts unbroken, lint
	hack/verify.sh

.PHONY: signers
signers: tools build kms ## the ca's signers beside the real programs: Kubernetes, cert-manager, istiod, step-ca, SoftHSM, Vault; the first run builds them into a cache, Vault alone in eight minutes
	kube=$$(tools/build-cached.sh kubernetes etcd) && istio=$$(tools/build-cached.sh istio) && step=$$(tools/build-cached.sh stepca) && \
	manager=$$(tools/build-cached.sh certmanager) && \
	crds=$$(cd tools/certmanager && GOWORK=off go mod download -json github.com/cert-manager/cert-manager | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p')/deploy/crds && \
	vault=$$(tools/build-cached.sh vault) && cd services/ca && \
	$(TESTENV) KUBE_BIN=$$kube ISTIO_BIN=$$istio STEPCA_BIN=$$step CERTMANAGER_BIN=$$manager CERTMANAGER_CRDS=$$crds \
	  VAULT_BIN=$$vault go test -count=1 $(TESTFLAGS) ./internal/signer/... ./internal/app

.PHONY: test-consul
test-consul: tools build ## config-watcher reads a real Consul: registrations, killed and stopped leaders, restored snapshots, lost rights; meshes of real Envoys that read Consul, of which no request fails meanwhile; LONG=1: 10,000 services, 30 killed leaders; the first run builds Consul into a cache, in seven minutes or more
	consul=$$(tools/build-cached.sh consul) && CONSUL_BIN=$$consul LONG=$(LONG) go test -count=1 -v -timeout 30m $(TESTFLAGS) ./services/config-watcher/internal/source/consul/... -run TestReal && \
	cd tests && $(TESTENV) CONSUL_BIN=$$consul LONG=$(LONG) go test -count=1 -v -timeout 30m $(TESTFLAGS) ./e2e/consul

.PHONY: stock
stock: tools build ## Istio's own pilot-agent and istioctl in a whole mesh; the first run builds them into a cache
	istio=$$(tools/build-cached.sh istio) && module=$$(cd tools/istio && GOWORK=off go mod download -json istio.io/istio | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p') && \
	cd tests && $(TESTENV) ISTIO_BIN=$$istio ISTIO_BOOTSTRAP=$$module/tools/packaging/common/envoy_bootstrap.json \
	  go test -count=1 -v $(TESTFLAGS) -run TestStock ./e2e/thirdparty && \
	$(TESTENV) ISTIO_BOOTSTRAP_TEMPLATE=$$module/tools/packaging/common/envoy_bootstrap.json \
	  go test -count=1 -v -run TestStockBootstrapTemplate ../services/node-agent/internal/app && \
	cd ../services/node-agent && ISTIO_BIN=$$istio go test -count=1 -v -run Stock ./internal/appprobe

# Images have this tag; those of deploy/kustomize/base have the tag dev.
IMAGE_TAG ?= $(VERSION)
images: tools build ## image archives in bin/: the services, injector, keeper, gateways, operator (fairlead), proxy (node-agent with Envoy), install-cni (node-agent with the CNI plugin), bookinfo; without a Docker daemon
	@set -e; for s in $(SERVICES) installer; do \
	  $(MAKE) --no-print-directory -C services/$$s image BIN=$(BIN) VERSION=$(VERSION) IMAGE_TAG=$(IMAGE_TAG); done
	@$(BIN)/cluster/image -binary $(BIN)/bookinfo -name fairlead/bookinfo:$(IMAGE_TAG) -out $(BIN)/bookinfo.tar

# A package's version begins with a number: without a tag it is 0~ and the commit.
PACKAGE_VERSION = $(shell echo '$(VERSION)' | sed -E 's/^v([0-9]+\.)/\1/; /^[0-9]+\./!s/^/0~/; s/-(alpha|beta|rc)/~\1/; s/-/+/g')
packages: tools build ## deb and rpm of node-agent with Envoy and the systemd unit, for machines outside of Kubernetes, in bin/; the first run builds nfpm into a cache
	@rm -f $(BIN)/*.deb $(BIN)/*.rpm
	@nfpm=$$(tools/build-cached.sh nfpm) && for p in deb rpm; do \
	  VERSION='$(PACKAGE_VERSION)' ARCH=$$(go env GOARCH) BIN=$(BIN) ENVOY=$$(readlink -f $(TOOLS)/envoy) $$nfpm/nfpm package -f deploy/machine/nfpm.yaml -p $$p -t $(BIN) || exit 1; done

test-packages: packages ## what is in them, and how dpkg installs, upgrades and removes the deb, which needs root
	cd tests && PACKAGES=$(BIN) go test -count=1 -v $(TESTFLAGS) ./packages

alerts: tools build ## alerts and objectives by promtool: each fires on written series, and on those of real services whose fault was made, SHARE=n: of the commit's one in n faults; the first run builds promtool, Kubernetes and etcd
	$(if $(SHARE),faults=$(call names,tests/alerts,TestFaults) && )prometheus=$$(tools/build-cached.sh prometheus) && kube=$$(tools/build-cached.sh kubernetes etcd) && \
	cd tests && $(TESTENV) PROMETHEUS_BIN=$$prometheus KUBE_BIN=$$kube go test -count=1 -v $(TESTFLAGS) ./alerts $(if $(SHARE),-run "^(Test[^F].*|$$faults)$$")

# The cluster of tests/cluster, and what runs in it besides.
# Clusters of different CLUSTER_INDEX, 0 to 15, have different addresses, so that cluster-link can join them.
CLUSTER_INDEX ?= 0
CLUSTER_DIR ?= $(RUN_DIR)/cluster$(if $(filter-out 0,$(CLUSTER_INDEX)),-$(CLUSTER_INDEX))
KUBE = kube=$$($(CURDIR)/tools/build-cached.sh kubernetes etcd coredns) && KUBE_BIN=$$kube
HELM = kube=$$kube:$$($(CURDIR)/tools/build-cached.sh helm) && BIN_DIR=$(BIN) KUBE_BIN=$$kube
CLUSTER_IMAGES = $(BIN)/cluster/pause.tar $(BIN)/cluster/coredns.tar
# What this machine lacks is said before minutes of building.
cluster-needs:
	@CGO_ENABLED=0 go build -trimpath -o $(BIN)/cluster/cluster ./tests/cluster/cmd/cluster
	@$(BIN)/cluster/cluster needs

cluster-programs:
	@CGO_ENABLED=0 go build -trimpath -o $(BIN)/cluster/ ./tests/cluster/cmd/cluster ./tests/cluster/cmd/pause ./tests/cluster/cmd/trap ./tests/cluster/cmd/samples ./tests/e2e/echo ./tools/image
	@dns=$$(tools/build-cached.sh coredns) && cd $(BIN)/cluster && for p in pause $$dns/coredns; do \
	  ./image -binary $$p -user 0:0 -name fairlead/$${p##*/}:cluster -out $${p##*/}.tar >/dev/null || exit 1; done

cluster-up: cluster-needs cluster-programs ## a Kubernetes cluster of one node on this machine, until `make cluster-down`; BALANCER=1: Services of type LoadBalancer get addresses; needs root. The first run builds Kubernetes
	@$(KUBE) $(BIN)/cluster/cluster up --dir $(CLUSTER_DIR) --index $(CLUSTER_INDEX) $(if $(BALANCER),--balancer) $(CLUSTER_IMAGES)

cluster-down: ## end it; nothing of it is left
	@CGO_ENABLED=0 go build -trimpath -o $(BIN)/cluster/cluster ./tests/cluster/cmd/cluster
	@$(BIN)/cluster/cluster down --dir $(CLUSTER_DIR)

cluster-load: IMAGE_TAG = dev
# Istio's source, of the module of tools/istio.
ISTIO = $$(cd $(CURDIR)/tools/istio && GOWORK=off go mod download -json istio.io/istio | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p')
# The sample has the names that Istio's YAML of it gives its images. Tag next is the next version, to upgrade to.
BOOKINFO_IMAGES := productpage-v1 details-v1 ratings-v1 reviews-v1 reviews-v2 reviews-v3
cluster-load: cluster-programs images sample-images ## build the images of services, injector, keeper, gateways, operator, proxy, install-cni, bookinfo and echo from this tree, and of Istio's own proxy, and load them into the cluster
	@$(BIN)/cluster/image -binary $(BIN)/cluster/echo -name fairlead/echo:$(IMAGE_TAG) -out $(BIN)/cluster/echo.tar
	@$(BIN)/cluster/image -binary $(BIN)/cluster/trap -user 0:0 -name fairlead/trap:$(IMAGE_TAG) -out $(BIN)/cluster/trap.tar
	@istio=$$(tools/build-cached.sh istio) && $(BIN)/cluster/image -binary $$istio/pilot-agent -name fairlead/stock-proxy:$(IMAGE_TAG) -out $(BIN)/cluster/stock-proxy.tar \
	  -add "$$(readlink -f $(TOOLS)/envoy)=/usr/local/bin/envoy" -add $(ISTIO)/tools/packaging/common/envoy_bootstrap.json=/var/lib/istio/envoy/envoy_bootstrap_tmpl.json
	@$(KUBE) $(BIN)/cluster/cluster load --dir $(CLUSTER_DIR) $(patsubst %,$(BIN)/%.tar,$(filter-out node-agent,$(SERVICES)) injector keeper gateways operator bookinfo proxy install-cni cluster/echo cluster/trap cluster/stock-proxy $(BOOKINFO_IMAGES:%=cluster/bookinfo-%))
	@$(BIN)/cluster/cluster tag --dir $(CLUSTER_DIR) $(IMAGE_TAG) next

cluster-join: cluster-programs ## add a second node to the cluster, node2, with the images of the first
	@$(KUBE) $(BIN)/cluster/cluster join --dir $(CLUSTER_DIR)

cluster-leave: cluster-programs ## remove it
	@$(KUBE) $(BIN)/cluster/cluster leave --dir $(CLUSTER_DIR)

cluster-link: cluster-programs ## join the cluster and that of WITH=DIR, of another CLUSTER_INDEX: nodes reach each other; PODS=1: Pods, too
	@$(BIN)/cluster/cluster link --dir $(CLUSTER_DIR) $(if $(PODS),--pods) $(WITH)

cluster-unlink: cluster-programs ## end that
	@$(BIN)/cluster/cluster unlink --dir $(CLUSTER_DIR) $(WITH)

cluster-shell: cluster-programs ## a shell in the cluster's network, with kubectl and KUBECONFIG
	@$(KUBE) $(BIN)/cluster/cluster exec --dir $(CLUSTER_DIR) $${SHELL:-bash}

# What tests in a cluster need besides. SAMPLE_BY is what a sample is chosen by.
CLUSTER_ENV = $(KUBE) && $(HELM) ISTIO_SAMPLES=$(ISTIO)/samples LONG=$(LONG) SAMPLE_BY=$(COMMIT)
cluster-tests: build cluster-programs
	cd tests && go test -c -o $(BIN)/cluster/mesh.test ./cluster/mesh

# With KUBECONFIG=FILE on make's command line the tests run in that cluster, whose nodes must have the images of
# cluster-load; a KUBECONFIG of the environment is not taken for that.
test-cluster: $(if $(findstring command line,$(origin KUBECONFIG)),,cluster-needs) cluster-tests ## tests in a Kubernetes cluster: one of its own, or KUBECONFIG=FILE of another; LONG=1: nothing of them is a sample, and rotations of the ca while nodes are drained, and its restore; needs root
ifeq ($(origin KUBECONFIG),command line)
	cd tests/cluster/mesh && $(CLUSTER_ENV) CLUSTER_KUBECONFIG=$(abspath $(KUBECONFIG)) $(BIN)/cluster/mesh.test -test.v -test.parallel 8 -test.timeout 60m
else
	cd tests && $(KUBE) CLUSTER_BIN=$(BIN)/cluster go test -count=1 -v -timeout 30m $(TESTFLAGS) ./cluster
	@$(MAKE) run-in-cluster DIR=test-cluster RUN='^Test[^A]'
endif

attacks-cluster: cluster-needs cluster-tests ## what somebody inside the cluster tries against an installed mesh, in a Kubernetes cluster of its own; needs root
	@$(MAKE) run-in-cluster DIR=attacks-cluster RUN='TestAttacks'

demo-cluster: cluster-needs cluster-tests ## the first day with a mesh, in a Kubernetes cluster of its own: install, inject Istio's bookinfo, ingress, mutual TLS, traffic split; prints how long each step takes; needs root
	@$(MAKE) run-in-cluster DIR=demo-cluster RUN='TestInstalledMesh/first_day'

# Scenarios of scenarios-cluster; what a sample is chosen by is the commit.
SAMPLE_OF_CLUSTER = $(if $(filter all,$(SAMPLE)),0,$(or $(SAMPLE),60))
CLUSTER_OUT = $(CURDIR)/.run/scenarios-cluster
scenarios-cluster: IMAGE_TAG = dev
scenarios-cluster: cluster-needs images cluster-programs ## traffic scenarios whose workloads are Pods, in a Kubernetes cluster of their own, with an installed mesh: the commit's 60 of those that can, SAMPLE=n: n, SAMPLE=all: all; needs root. The first run builds Kubernetes
	@CGO_ENABLED=0 go build -trimpath -o $(BIN)/cluster/scenario-echo ./tests/scenarios/echo
	@$(BIN)/cluster/image -binary $(BIN)/cluster/scenario-echo -user 0:0 -name fairlead/scenario-echo:$(IMAGE_TAG) -out $(BIN)/cluster/scenario-echo.tar
	@cd tests && go test -c -o $(BIN)/cluster/scenarios.test ./scenarios
	@trap '$(MAKE) -C $(CURDIR) cluster-down CLUSTER_DIR=$(RUN_DIR)/scenarios-cluster-node' EXIT; set -e; rm -rf $(CLUSTER_OUT); \
	$(MAKE) cluster-up CLUSTER_DIR=$(RUN_DIR)/scenarios-cluster-node; dir=$(abspath $(RUN_DIR))/scenarios-cluster-node; $(KUBE); export KUBE_BIN $(TESTENV); \
	$(BIN)/cluster/cluster load --dir $$dir $(patsubst %,$(BIN)/%.tar,$(filter-out node-agent,$(SERVICES)) injector keeper gateways proxy cluster/scenario-echo); \
	cd tests/scenarios; $(BIN)/cluster/cluster exec --dir $$dir $(BIN)/cluster/scenarios.test -test.v -test.run 'TestScenarios$$' -test.timeout 30m $(TESTFLAGS) \
	  -cluster -dir cases,examples -out $(CLUSTER_OUT) -sample $(SAMPLE_OF_CLUSTER) -share-by $(COMMIT) || \
	{ cp -r $$dir/log $(CLUSTER_OUT)/node; echo "what failed is in $(CLUSTER_OUT), with logs of the node" >&2; exit 1; }

# The conformance suite of the Gateway API, of a module outside of go.work. Whichever control plane is tested, the images
# are those that the suite's manifests name, built here.
CONTROL_PLANE ?= fairlead
CONFORMANCE = $(BIN)/conformance
CONFORMANCE_OUT = $(CURDIR)/.run/conformance-$(CONTROL_PLANE)
CONFORMANCE_NODE = $(RUN_DIR)/conformance-node
PLANE_OF_ISTIO = $(filter istiod,$(CONTROL_PLANE))
conformance-images: IMAGE_TAG = dev
conformance-images: cluster-programs tools $(if $(PLANE_OF_ISTIO),,images)
	@mkdir -p $(CONFORMANCE); istio=$$(tools/build-cached.sh istio) && dns=$$(tools/build-cached.sh coredns) && source=$(ISTIO) && \
	(cd tests/conformance && export GOWORK=off CGO_ENABLED=0 && go test -c -o $(CONFORMANCE)/conformance.test . && \
	  go build -trimpath -o $(CONFORMANCE)/ ./cmd/images sigs.k8s.io/gateway-api/conformance/echo-basic) && \
	$(CONFORMANCE)/images -image $(BIN)/cluster/image -bin $(CONFORMANCE) -istio $$istio -istio-source $$source -coredns $$dns -out $(CONFORMANCE) >$(CONFORMANCE)/archives && \
	if [ -z "$(PLANE_OF_ISTIO)" ]; then echo $(patsubst %,$(BIN)/%.tar,$(filter-out node-agent,$(SERVICES)) injector keeper gateways proxy) >>$(CONFORMANCE)/archives; exit; fi && \
	$(BIN)/cluster/image -binary $$istio/pilot-discovery -name istio/pilot:test -out $(CONFORMANCE)/pilot.tar >/dev/null && \
	$(BIN)/cluster/image -binary $$istio/pilot-agent -name istio/proxyv2:test -out $(CONFORMANCE)/proxyv2.tar -add "$$(command -v nft)=/usr/local/bin/nft" \
	  -add "$$(readlink -f $(TOOLS)/envoy)=/usr/local/bin/envoy" -add $$source/tools/packaging/common/envoy_bootstrap.json=/var/lib/istio/envoy/envoy_bootstrap_tmpl.json >/dev/null && \
	echo $(CONFORMANCE)/pilot.tar $(CONFORMANCE)/proxyv2.tar >>$(CONFORMANCE)/archives

conformance: cluster-needs conformance-images ## the Gateway API's own conformance suite in a Kubernetes cluster of its own, RUN=NAME: one test, SAMPLE=n: the commit's n, CONTROL_PLANE=istiod: of Istio's control plane, which proves the rig; needs root. The first run builds Kubernetes and Istio
	@trap '$(MAKE) --no-print-directory -C $(CURDIR) cluster-down CLUSTER_DIR=$(CONFORMANCE_NODE)' EXIT; trap 'exit 130' INT TERM; set -e; \
	rm -rf $(CONFORMANCE_OUT); mkdir -p $(CONFORMANCE_OUT); \
	$(MAKE) --no-print-directory cluster-up CLUSTER_DIR=$(CONFORMANCE_NODE) BALANCER=1; dir=$(abspath $(CONFORMANCE_NODE)); \
	$(KUBE); export KUBE_BIN; $(BIN)/cluster/cluster load --dir $$dir $$(cat $(CONFORMANCE)/archives) >/dev/null; \
	export GATEWAY_API=$$(cd tests/conformance && GOWORK=off go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api) VERSION='$(VERSION)' SAMPLE='$(SAMPLE)' SAMPLE_BY=$(COMMIT) RUN='$(RUN)'; \
	CONTROL_PLANE=$(CONTROL_PLANE) CONFORMANCE_OUT=$(CONFORMANCE_OUT) PATH="$(BIN):$$(tools/build-cached.sh istio):$$PATH" $(BIN)/cluster/cluster exec --dir $$dir \
	  $(CONFORMANCE)/conformance.test -test.v -test.parallel 4 -test.timeout 60m $(TESTFLAGS) >$(CONFORMANCE_OUT)/log.txt || \
	{ cp -r $$dir/log $(CONFORMANCE_OUT)/node; grep -E -B1 -A10 'Error Trace:|plane_test.go:' $(CONFORMANCE_OUT)/log.txt; echo "the suite's log, Pods and logs of the node are in $(CONFORMANCE_OUT)" >&2; exit 1; }

# After a run of all tests.
conformance-page: ## docs/reference/gateway-api.md, of the reports that `make conformance` wrote
	mkdir -p docs/reference/gateway-api && cp $(patsubst %,$(CONFORMANCE_OUT)/%.yaml,gateway gateway-tests mesh mesh-tests) docs/reference/gateway-api/
	go test ./tests/conformancereport -run TestPage -update

# Two clusters with a link, and what Istio's samples helloworld, curl and bookinfo run in them.
MULTI = $(RUN_DIR)/multicluster
MULTI_IMAGES = $(patsubst %,$(BIN)/%.tar,$(filter-out node-agent,$(SERVICES)) injector keeper gateways proxy cluster/helloworld-v1 cluster/helloworld-v2 cluster/curl $(BOOKINFO_IMAGES:%=cluster/bookinfo-%))
multicluster: IMAGE_TAG = dev
multicluster: cluster-needs images cluster-tests ## two Kubernetes clusters with a link, each with a mesh as Istio's guides install it: multi-primary and primary-remote on two networks and on one, LONG=1: failover, a gateway that is killed, an API server that is away; RUN=PATTERN: tests by name; needs root
	@$(MAKE) --no-print-directory sample-images
	@trap '$(MAKE) --no-print-directory -C $(CURDIR) multicluster-down' EXIT; trap 'exit 130' INT TERM; set -e; rm -rf $(RUN_DIR)/multicluster-logs; \
	export CLUSTER_BEGAN=$$(date +%s); dir=$(abspath $(MULTI)); $(KUBE); export KUBE_BIN; \
	for i in 0 1; do $(BIN)/cluster/cluster up --dir $$dir-$$i --index $$i $(CLUSTER_IMAGES); $(BIN)/cluster/cluster load --dir $$dir-$$i $(MULTI_IMAGES) >/dev/null; done; \
	cd tests/cluster/mesh; $(CLUSTER_ENV) CLUSTER_OTHER=$$dir-1 $(BIN)/cluster/cluster exec --dir $$dir-0 $(BIN)/cluster/mesh.test -test.v -test.run '$(or $(RUN),^TestClusters)' -test.timeout 60m $(TESTFLAGS) || \
	{ mkdir -p $$dir-logs && for i in 0 1; do cp -r $$dir-$$i/log $$dir-logs/$$i; done; echo "logs of the components are in $$dir-logs" >&2; exit 1; }

multicluster-down:
	@for i in 0 1; do $(BIN)/cluster/cluster down --dir $(abspath $(MULTI))-$$i; done

# Images by the names that Istio's samples have for them.
sample-images: cluster-programs
	@for v in v1 v2; do $(BIN)/cluster/image -binary $(BIN)/cluster/samples -arg -version=$$v -user 1000:1000 -name registry.istio.io/release/examples-helloworld-$$v:1.0 -out $(BIN)/cluster/helloworld-$$v.tar >/dev/null || exit 1; done
	@$(BIN)/cluster/image -binary $(BIN)/cluster/samples -user 1000:1000 -add $(BIN)/cluster/samples=/bin/sleep -add $(BIN)/cluster/samples=/usr/bin/curl -name docker.io/curlimages/curl:8.16.0 -out $(BIN)/cluster/curl.tar >/dev/null
	@for s in $(BOOKINFO_IMAGES); do $(BIN)/cluster/image -binary $(BIN)/bookinfo -arg $${s%-*} -arg --version=$${s##*-} -user 1000:1000 \
	  -name registry.istio.io/release/examples-bookinfo-$$s:1.20.3 -out $(BIN)/cluster/bookinfo-$$s.tar >/dev/null || exit 1; done

run-in-cluster:
	@trap '$(MAKE) -C $(CURDIR) cluster-down CLUSTER_DIR=$(RUN_DIR)/$(DIR)' EXIT; set -e; rm -rf $(RUN_DIR)/cluster-logs; \
	$(MAKE) cluster-up cluster-load CLUSTER_DIR=$(RUN_DIR)/$(DIR); \
	dir=$(abspath $(RUN_DIR)); cd tests/cluster/mesh; \
	$(CLUSTER_ENV) $(BIN)/cluster/cluster exec --dir $$dir/$(DIR) $(BIN)/cluster/mesh.test -test.v -test.run '$(RUN)' -test.parallel 8 -test.timeout 60m || \
	{ cp -r $$dir/$(DIR)/log $$dir/cluster-logs; echo "logs of the components are in $$dir/cluster-logs" >&2; exit 1; }

clean: ## remove what was built
	rm -rf $(BIN) $(RUN_DIR)

.PHONY: everything help kms tools grpcjs build demo up down test test-race race-modules race-e2e lint generate golden bench bench-agent bench-policies bench-full bench-kube scenarios removals attacks oracle stock skew mutants mcp test-kube test-unprivileged verify images packages test-packages alerts clean cluster-needs cluster-programs cluster-up cluster-down cluster-load cluster-join cluster-leave cluster-link cluster-unlink cluster-shell cluster-tests test-cluster attacks-cluster demo-cluster scenarios-cluster conformance conformance-images conformance-page run-in-cluster multicluster multicluster-down sample-images
