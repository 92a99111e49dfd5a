# make help lists what there is.
SHELL := /bin/bash
TOOLS := $(CURDIR)/.prego/bin
export PATH := $(TOOLS):$(PATH)
export GOTOOLCHAIN ?= local
# What depends on versions and recipes alone is built once for all checkouts: programs, images, roots of machines.
export PREGO_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/prego
# golangci-lint caches findings with the paths of the checkout they were made in, so
# that one cache shared by two checkouts reports files that no exclusion matches.
export GOLANGCI_LINT_CACHE := $(PREGO_CACHE)/golangci-lint/$(shell pwd | sha256sum | cut -c1-12)

TEMPORAL_VERSION      := v1.5.1
TEMPORAL_SERVER       := v1.32.1
GOLANGCI_VERSION      := v2.12.0
WORKFLOWCHECK_VERSION := v0.6.0
GOTESTSUM_VERSION     := v1.13.0
PEBBLE_VERSION        := v2.10.3
VERSITYGW_VERSION     := v1.8.0
CADDY_VERSION         := v2.11.7
AXE_VERSION           := 4.14.1
OIDC_VERSION          := 9.13.3
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo dev)
BENCH_PACKAGES := mariadbd redis-server python3-click python3-pymysql python3-cryptography
# tools/test.sh runs it.
export GOTESTSUM := $(TOOLS)/gotestsum-$(GOTESTSUM_VERSION)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: help build demo dev test test-race-all test-deep lint bench bench-compare scale soak generate golden chaos fuzz mutate mutants frozen tools packages clean image compose-config alerts test-production test-three-hosts test-frappe machines test-machines images

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/prego, bin/prego-agent and bin/prego-lab, all static
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/prego ./cmd/prego
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS) -X main.releaseKeys=$(AGENT_RELEASE_KEYS)' -o bin/prego-agent ./cmd/prego-agent
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/prego-lab ./cmd/prego-lab

demo: demo-packages build demo-programs $(if $(MACHINES),,storage-later) ## Run everything here, provision one server of each role, a tenant of each plan and a fleet (ARGS="--exit" to end by itself, MACHINES=1 for servers alone, on real Debians)
	bin/prego-lab dev --demo $(if $(MACHINES),--hosts machine) $(ARGS)

.PHONY: demo-packages demo-programs storage-later first-run axe oidc-provider screenshots
demo-packages:
	@tools/packages.sh postgres $(BENCH_PACKAGES) $(if $(MACHINES),,haproxy)

demo-programs: temporal $(if $(MACHINES),machines,caddy pebble)

# No package has it, and building it takes minutes: the demo starts without it, and takes it when it is there.
storage-later:
	@[ -e $(TOOLS)/versitygw-$(VERSITYGW_VERSION) ] || { mkdir -p .prego/log; \
		echo "Object storage is built in the background, also after the demo; see .prego/log/versitygw.log"; \
		nice -n 19 $(MAKE) versitygw >.prego/log/versitygw.log 2>&1 & }

first-run: ## Time the first run, phase by phase: packages, build, programs, until the console answers, and the demo (RELEASE=directory for one from release files)
	@tools/first-run.sh $(if $(RELEASE),--from '$(RELEASE)')

dev: demo-packages build demo-programs ## Run everything here and wait
	bin/prego-lab dev $(ARGS)

# Packages with goroutines that share state: their tests run with the race detector, which costs several times the
# CPU and a second build of everything. Those whose tests take long have lines in tools/deep.txt instead;
# tools/checks_test.go finds a package that is missing in both, contributing/testing.md has the reasons.
RACE := ./agent/online ./agent/rooted ./agent/exec ./agent/host ./agent/supervise ./agentgw ./placer ./worker \
	./internal/agentclient ./internal/dockerhost ./internal/hetzner ./internal/oidc ./internal/pki ./internal/relay ./lab/child ./lab/sim
# The others are in tools/deep.txt.
UNIT = $(shell go list ./... | grep -v -e /lab/e2e$$ -e /lab/production$$ -e /lab/docsrun$$ -e /lab/sim/judge$$ -e /prego/tools$$)
PLAIN = $(filter-out $(RACE),$(patsubst github.com/prego/prego%,.%,$(UNIT)))
# make lint vets; without the directory's name in them, builds of another checkout are used
# again, and without cgo also those of make build.
export TESTFLAGS := -trimpath -vet=off

test: packages temporal pebble versitygw axe oidc-provider $(GOTESTSUM) $(if $(filter 0,$(shell id -u)),images machines) ## Run what a push must pass: unit and end-to-end tests, the demo, a real Debian, the seeded world, and this commit's share of test-deep
	tools/deep.sh check
	RACE="$(RACE)" PLAIN="$(PLAIN)" tools/push.sh

test-race-all: packages temporal pebble versitygw oidc-provider $(GOTESTSUM) ## Run every unit test with the race detector (many minutes)
	PACKAGES="$(UNIT)" tools/test.sh -race -timeout 60m

# How many times as much as make test does.
DEEP ?= 20
test-deep: tools packages temporal pebble versitygw axe oidc-provider $(GOTESTSUM) images machines ## Run all of tools/deep.txt, and each property on DEEP=20 times as many cases (hours)
	PREGO_TEST_DEEP=$(DEEP) tools/deep.sh all

image: build ## Build the image that docker-compose.yml runs, and try it
	@tools/packages.sh docker dockerd postgres-server setpriv ca-certificates
	tools/image.sh

compose-config: ## Check docker-compose.yml
	@tools/packages.sh compose
	tools/compose-config.sh

PROMTOOL ?= promtool
alerts: ## Check the alert rules, and try each of them (PROMTOOL=path for one of your own)
	@[ "$(PROMTOOL)" != promtool ] || tools/packages.sh promtool
	$(PROMTOOL) check rules deploy/alerts.yaml
	$(PROMTOOL) test rules deploy/alerts_test.yaml deploy/alerts_day_test.yaml

test-production: build bench-packages temporal $(GOTESTSUM) $(if $(QUICK),,$(TOOLS)/temporal-server-$(TEMPORAL_SERVER)) ## Run what docker-compose.yml declares and kill each part of it, then the end-to-end tests on its Temporal (RUN=pattern for some; QUICK=1 leaves both that Temporal's building and these out)
	@tools/packages.sh compose postgres-server nc nsenter setpriv sysctl nft ip ca-certificates
	@server=$(TOOLS)/temporal-server-$(TEMPORAL_SERVER); [ -d "$$server" ] || server=; \
	[ -n "$$server" ] || echo "Temporal $(TEMPORAL_SERVER) is not built here: its dev server stands in for it"; \
	TEMPORAL_SERVER=$$server PACKAGES=./lab/production tools/test.sh -count=1 -timeout 10m -run '^TestTheStackOfDockerCompose$$'
ifndef QUICK
	TEMPORAL_SERVER=$(TOOLS)/temporal-server-$(TEMPORAL_SERVER) tools/test-production.sh $(if $(RUN),-run '$(RUN)')
endif

test-three-hosts: build bench-packages temporal machines $(GOTESTSUM) $(TOOLS)/temporal-server-$(TEMPORAL_SERVER) ## Set three Debians up as docs/production-three-hosts.md describes, and cut the power of each under load (as root)
	@tools/packages.sh ip sysctl nsenter unshare systemd-nspawn
	@tools/three-hosts-root.sh .prego/machines/three-hosts
	TEMPORAL_SERVER=$(TOOLS)/temporal-server-$(TEMPORAL_SERVER) PACKAGES=./lab/production FORMAT=standard-verbose \
		tools/test.sh -count=1 -timeout 15m -run '^TestThreeHosts$$'

test-machines: machines images postgres temporal pebble $(GOTESTSUM) ## Run the control plane against real Debians under systemd-nspawn (as root; ARGS="-run TestMachineConformance" for some)
	@tools/packages.sh nsenter
	tools/test-machines.sh $(ARGS)

machines: ## Build what simulated machines boot from, once (as root; contributing/simulator.md)
	@tools/packages.sh debootstrap systemd-nspawn apt-ftparchive ip losetup mkfs.ext4
	@tools/machine-root.sh .prego/machines

test-frappe: build caddy ## Run the verbs on sites in containers of IMAGE=frappe/erpnext:v15.93.0 or another with Frappe 15, or of the stand-in's
	@tools/packages.sh docker dockerd debootstrap
	tools/test-frappe.sh $(IMAGE)

images: caddy ## Build the images that stand in for Frappe's, MariaDB's, Redis's, Caddy's and HAProxy's, once (as root; docs/frappe.md)
	@tools/packages.sh debootstrap
	@tools/images.sh .prego/images

bench: packages temporal ## Run the benchmarks, each beside its bare limit, and write bench.json (ROUNDS=5 for their noise)
	rm -f bench.json
	PREGO_TEST_SCRATCH=/var/tmp PREGO_BENCH_JSON=$(CURDIR)/bench.json go test -run '^$$' -bench . -benchtime 1x -count $(or $(ROUNDS),1) -timeout 60m ./lab/e2e ./store ./placement ./placement/pack ./placement/region ./agentgw ./agent/edge

scale: packages temporal ## Load a large installation, print what it costs and write it to docs/performance/scale.md (ARGS="-servers 10000")
	mkdir -p docs/performance
	PREGO_TEST_SCRATCH=/var/tmp go test -tags scale -run '^TestScale$$' -count 1 -v -timeout 60m ./lab/e2e -report $(CURDIR)/docs/performance/scale.md $(ARGS)

soak: packages temporal pebble versitygw ## Load a small installation for DURATION=30m (as root) and fail if memory, connections, rows or disk grow (contributing/soak.md)
	PREGO_TEST_SCRATCH=/var/tmp go test -tags soak -run '^TestSoak$$' -count 1 -v -timeout 24h ./lab/e2e -for $(or $(DURATION),30m) $(ARGS)

bench-compare: ## Compare bench.json with the last recorded run
	go run ./tools/bench-compare

lint: $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) $(TOOLS)/workflowcheck-$(WORKFLOWCHECK_VERSION) ## Check style, imports, determinism, forbidden patterns, generated code, alerts, docker-compose.yml and the limits of the house
	$(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) run --allow-parallel-runners ./...
	$(TOOLS)/workflowcheck-$(WORKFLOWCHECK_VERSION) -config tools/workflowcheck.yaml ./workflows/...
	tools/forbidden.sh
	tools/generated.sh
	$(MAKE) alerts compose-config house

generate: ## Generate what is generated
	go generate ./...

chaos: packages ## Play SEEDS=20 seeds of the seeded world (NAMES=1 with edges, names and certificates) and look for planted bugs (BUGS=none for none, BUGS=5 for five by chance); SEED=n plays one with its timeline (docs/reliability.md)
	@SEEDS=$(SEEDS) SEED=$(SEED) FIRST=$(FIRST) BUGS="$(BUGS)" BUG_SEEDS=$(BUG_SEEDS) NAMES=$(NAMES) tools/chaos.sh

mutate: ## Change PKG's code in every small way (PKG=./placement/region) and say what its tests don't notice
	go run ./tools/mutate $(MUTATE) $(PKG)

# Packages whose mutants are all noticed, or explained in tools/mutate/go.txt.
MUTATED := ./internal/token ./org/quota ./placement ./placement/instance ./placement/region ./placement/scale ./placement/sim

# Packages whose tests take so long that mutants are drawn.
DRAWN := ./agentgw ./activities

mutants: postgres ## Drop each condition of the SQL that reserves, one at a time, and say which drop no test notices (MUTATE="-draw 20" for some; hours for all); change the packages of MUTATED in every small way, others in thirty
	for p in $(MUTATED); do go run ./tools/mutate $$p || exit; done
	for p in $(DRAWN); do go run ./tools/mutate -draw 30 -seed 1 -timeout 10m -budget 6h $$p || exit; done
	go run ./tools/mutate -sql named -timeout 5m -budget 6h $(MUTATE) ./store

frozen: postgres ## Plant the mutants of tools/frozen/mutants.txt, one at a time, and say which their tests don't catch (ID="d01 'q.*'" for some; hours for all)
	@tools/packages.sh patch
	go run ./tools/frozen $(FROZEN) $(ID)

fuzz: postgres bench-packages temporal build ## Try every parser that meets a stranger on made-up inputs, FUZZTIME=30s each, and the API over its contract (three seeds; SEED=n for one)
	@tools/packages.sh python3-venv curl
	FUZZTIME=$(FUZZTIME) tools/fuzz.sh
	SEED=$(SEED) tools/schemathesis.sh

golden: ## Write the golden files anew
	go test ./internal/cloudinit ./agent/edge ./api ./cli ./placement/pack ./placement/sim \
		-run '^(TestGolden|TestCaddysConfiguration|TestTraefikDocument|TestEveryNounAsItIsShown|Test(Packings|Reports)AreAsRecorded)$$' -update

.PHONY: postgres temporal pebble versitygw caddy bench-packages
postgres: # the server's binaries, unless a database is given
	@tools/packages.sh postgres

bench-packages: # what sites of simulated hosts run on
	@tools/packages.sh $(BENCH_PACKAGES)

temporal: $(TOOLS)/temporal-$(TEMPORAL_VERSION) # Temporal's CLI

$(TOOLS)/temporal-$(TEMPORAL_VERSION):
	@tools/install.sh $@ github.com/temporalio/cli/cmd/temporal@$(TEMPORAL_VERSION)
	@ln -sfn $(@F) $(TOOLS)/temporal

caddy: $(TOOLS)/caddy-$(CADDY_VERSION)

$(TOOLS)/caddy-$(CADDY_VERSION):
	@CGO_ENABLED=0 INSTALLFLAGS=-trimpath INSTALL_LDFLAGS='-s -w' tools/install.sh $@ github.com/caddyserver/caddy/v2/cmd/caddy@$(CADDY_VERSION)
	@ln -sfn $(@F) $(TOOLS)/caddy

packages: caddy # what the tests use of Debian, and what an edge runs
	@tools/packages.sh postgres chromium cloud-init hcloud nft ip curl systemd-analyze dockerd jq unshare haproxy patch
	@tools/packages.sh $(BENCH_PACKAGES)

axe: $(TOOLS)/axe-core-$(AXE_VERSION).js # what tests hold the console's pages against, for people who see or type otherwise

$(TOOLS)/axe-core-$(AXE_VERSION).js:
	tools/axe.sh $(AXE_VERSION)

oidc-provider: $(TOOLS)/oidc-provider-$(OIDC_VERSION) # an issuer for tests of logins, with its own pages

$(TOOLS)/oidc-provider-$(OIDC_VERSION):
	tools/oidc.sh $(OIDC_VERSION)

screenshots: demo-packages build demo-programs versitygw ## Make pictures of the console's pages, with what the demo leaves, in docs/console (ONLY=now,move for some)
	@tools/packages.sh chromium
	tools/screenshots.sh $(ONLY)

pebble: $(TOOLS)/pebble-$(PEBBLE_VERSION) # Let's Encrypt's ACME server for tests, and its DNS, built once into .prego/bin

$(TOOLS)/pebble-$(PEBBLE_VERSION):
	@CGO_ENABLED=0 INSTALLFLAGS=-trimpath INSTALL_LDFLAGS='-s -w' tools/install.sh $@ \
		$(addprefix github.com/letsencrypt/pebble/v2/cmd/,$(addsuffix @$(PEBBLE_VERSION),pebble pebble-challtestsrv))

versitygw: $(TOOLS)/versitygw-$(VERSITYGW_VERSION) # an S3 server for tests, built once into .prego/bin

$(TOOLS)/versitygw-$(VERSITYGW_VERSION):
	@CGO_ENABLED=0 INSTALLFLAGS=-trimpath INSTALL_LDFLAGS='-s -w' tools/install.sh $@ \
		github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION)
	@ln -sfn $(@F) $(TOOLS)/versitygw

tools: temporal pebble versitygw caddy $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) $(TOOLS)/workflowcheck-$(WORKFLOWCHECK_VERSION) $(GOTESTSUM) ## Install the tools that the other verbs use

$(TOOLS)/temporal-server-$(TEMPORAL_SERVER):
	@echo "Temporal's server $(TEMPORAL_SERVER) (built once, some minutes)"
	CGO_ENABLED=0 INSTALLFLAGS=-trimpath INSTALL_LDFLAGS='-s -w' tools/install.sh $@ go.temporal.io/server/cmd/server@$(TEMPORAL_SERVER) go.temporal.io/server/cmd/tools/sql@$(TEMPORAL_SERVER)
	ln -sfn server $@/temporal-server
	ln -sfn sql $@/temporal-sql-tool

$(TOOLS)/golangci-lint-$(GOLANGCI_VERSION):
	tools/install.sh $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

$(TOOLS)/workflowcheck-$(WORKFLOWCHECK_VERSION):
	tools/install.sh $@ go.temporal.io/sdk/contrib/tools/workflowcheck@$(WORKFLOWCHECK_VERSION)

$(GOTESTSUM):
	tools/install.sh $@ gotest.tools/gotestsum@$(GOTESTSUM_VERSION)

.PHONY: release release-install-test
# Compilation is the same as of make build; the tool's dependencies are those of its own module.
release: ## Build release files into .prego/release/VERSION (VERSION=v0.1.0; RELEASE_KEY=file signs; docs/install.md)
	@go -C tools/release run . -root $(CURDIR) -version '$(if $(filter command%,$(origin VERSION)),$(VERSION))' \
		-out $(CURDIR)/.prego/release/$(VERSION) -key '$(if $(RELEASE_KEY),$(abspath $(RELEASE_KEY)))' \
		-agent-keys '$(AGENT_RELEASE_KEYS)'

release-install-test: temporal machines ## Build a release twice, compare, and install it on Debians without Go (as root)
	@tools/packages.sh postgres-server setpriv systemd-nspawn openssl ip nsenter docker dockerd
	go -C tools/release vet ./... && CGO_ENABLED=0 go -C tools/release test -count=1 -trimpath ./...
	tools/release-install-test.sh

.PHONY: house
house: ## Count what the project is made of (lines, rooms, settings, terms, habits of English) and hold it against its limits
	go run ./tools/house $(ARGS)

clean: ## Delete what was built and all data of dev and demo
	rm -rf bin .prego
