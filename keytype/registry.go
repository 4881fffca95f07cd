package keytype

// The registered types. A type is added by the change that first writes it.
var (
	Session = &Type{
		Name: "session", Owner: "session", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable per user",
		OnStoreFailure: "fail closed: 503, never a verdict",
		IfLost:         "cannot be lost without losing the durable store",
		TTL:            "removed after its absolute expiry; expiry itself is decided by comparing instants",
		Parts:          []string{"user_tag", "session_id"}, Table: "sessions", Partition: "U#", Sort: "S#", Cache: "cs:{%s}:s:%s",
	}
	UserEpoch = &Type{
		Name: "user_epoch", Owner: "session", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable per user",
		OnStoreFailure: "fail closed: 503, never a verdict",
		IfLost:         "cannot be lost without losing the durable store",
		TTL:            "kept while the user exists",
		Parts:          []string{"user_tag"}, Table: "sessions", Partition: "U#", Sort: "E", Cache: "cs:{%s}:e",
	}
	TenantEpoch = &Type{
		Name: "tenant_epoch", Owner: "session", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable; nodes read it again every 5 s",
		OnStoreFailure: "known values count at most 10 s, then fail closed: 503, never a verdict",
		IfLost:         "sessions from before a tenant-wide logout live again",
		TTL:            "never removed",
		Parts:          []string{"tenant"}, Table: "sessions", Partition: "T#", Sort: "T",
	}
	SessionData = &Type{
		Name: "session_data", Owner: "session", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable; a write names the version that it replaces",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "cannot be lost without losing the durable store",
		TTL:            "removed with its session, after that one's absolute expiry",
		Parts:          []string{"user_tag", "session_id"}, Table: "sessions", Partition: "U#", Sort: "D#",
	}
	RateBucket = &Type{
		Name: "rate_bucket", Owner: "ratelimit", Store: "redis", Durability: Ephemeral,
		Consistency:    "linearizable per key; without Redis within one process",
		OnStoreFailure: "per policy: fail_open, fail_closed, or local: a rate of its own on each node",
		IfLost:         "one fresh burst",
		TTL:            "the time until the bucket is full again, rounded up",
		Parts:          []string{"tenant", "policy", "limit", "counter", "descriptors"}, Mark: "b",
	}
	ConcurrencySlot = &Type{
		Name: "concurrency_slot", Owner: "ratelimit", Store: "redis", Durability: Ephemeral,
		Consistency:    "linearizable per key; without Redis within one process",
		OnStoreFailure: "per policy: fail_open, fail_closed, or local: a rate of its own on each node",
		IfLost:         "as many again may run at once until the earlier ones end",
		TTL:            "until the last slot expires, rounded up",
		Parts:          []string{"tenant", "policy", "limit", "descriptors"}, Mark: "c",
	}
	ChargeRequest = &Type{
		Name: "charge_request", Owner: "ratelimit", Store: "redis", Durability: Ephemeral,
		Consistency:    "linearizable per key; without Redis within one process",
		OnStoreFailure: "per policy: fail_open, fail_closed, or local: a rate of its own on each node",
		IfLost:         "a retry may charge twice",
		TTL:            "10 minutes after the request",
		Parts:          []string{"tenant", "operation", "content", "request_id"}, Mark: "r",
	}
	// DenyCache holds refusals of buckets, under their keys.
	DenyCache = &Type{
		Name: "deny_cache", Owner: "ratelimit", Store: "memory", Durability: Ephemeral,
		Consistency:    "at most 5 s behind a refund or reset on another node",
		OnStoreFailure: "none: it is this process's memory",
		IfLost:         "one more call of the store",
		TTL:            "until the refused cost would pass, at most 5 s",
		Parts:          []string{"tenant", "policy", "limit", "counter", "descriptors"},
	}
	// TokenLease says of one bucket who holds units that were taken from it and not yet
	// spent: no more than the policy lets all nodes hold together. The units themselves
	// are in the nodes' memory.
	TokenLease = &Type{
		Name: "token_lease", Owner: "ratelimit", Store: "redis", Durability: Ephemeral,
		Consistency:    "linearizable per key; a limit over-admits by at most what all nodes hold, and that is the policy's max_overshoot",
		OnStoreFailure: "what a node holds is spent until it expires, within 1 s; then per policy: fail_open, fail_closed, or local",
		IfLost:         "nodes may take as many again while they still hold the earlier ones, for at most 1 s",
		TTL:            "until the last batch cannot be spent any more, at most 1.25 s",
		Parts:          []string{"tenant", "policy", "limit", "descriptors"}, Mark: "l",
	}
	// AdvisoryLock lives in memory only where one process is all there is.
	AdvisoryLock = &Type{
		Name: "advisory_lock", Owner: "lock", Store: "redis", Durability: Ephemeral,
		Consistency:    "none to rely on: may be granted twice",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "work may run twice",
		TTL:            "the end of the lock",
		Parts:          []string{"tenant", "name"},
	}
	StoreMarker = &Type{
		Name: "store_marker", Owner: "serve", Store: "redis", Durability: Ephemeral,
		Consistency:    "linearizable within one Redis",
		OnStoreFailure: "looked for again every 10 s",
		IfLost:         "the next node writes it; that two sets of tables share a prefix shows later",
		TTL:            "24 h after its last renewal",
		Parts:          []string{}, Cache: "store_marker",
	}
	// Deployment has one item: whose the tables, or the data folder, are.
	Deployment = &Type{
		Name: "deployment", Owner: "serve", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable; nodes renew it every 10 s",
		OnStoreFailure: "a node does not become ready; after 45 s its sessions are no longer cached",
		IfLost:         "the next node makes it, under whatever route key it has",
		TTL:            "never removed",
		Parts:          []string{"name"}, Table: "sessions", Partition: "N#", Sort: "N",
	}
	Lease = &Type{
		Name: "lease", Owner: "lease", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "fencing tokens would repeat: raise the fence floor after a restore",
		TTL:            "never removed: the fence counter outlives the lease",
		Parts:          []string{"tenant", "resource"}, Table: "leases",
	}
	Fence = &Type{
		Name: "fence", Owner: "fencing", Store: "dynamodb", Durability: DurableFenced,
		Consistency:    "linearizable",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "fencing tokens would repeat: raise the fence floor after a restore",
		TTL:            "never removed",
		Parts:          []string{"tenant", "resource"}, Table: "leases", Within: Lease,
	}
	FenceFloor = &Type{
		Name: "fence_floor", Owner: "lease", Store: "dynamodb", Durability: Durable,
		Consistency:    "nodes cache it for at most 30 s",
		OnStoreFailure: "fail closed: 503, no grant",
		IfLost:         "as if it was never raised: raise it again",
		TTL:            "never removed",
		Parts:          []string{"name"}, Table: "leases",
	}
	ProtectedRecord = &Type{
		Name: "protected_record", Owner: "fencing", Store: "dynamodb", Durability: DurableFenced,
		Consistency:    "linearizable",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "the value and its guard against stale writers are gone",
		TTL:            "never removed",
		Parts:          []string{"tenant", "resource", "key"}, Table: "protected",
	}
	Quota = &Type{
		Name: "quota", Owner: "quota", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "units that were used can be used again until the window ends",
		TTL:            "a window 7 days after its end; one that never ends, and the setting (no window), never",
		Parts:          []string{"tenant", "name", "subject", "window"}, Table: "quotas",
	}
	QuotaReservation = &Type{
		Name: "quota_reservation", Owner: "quota", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "the reserved units stay reserved until the window ends",
		TTL:            "24 h after its end, and not before its window's; an active one never",
		Parts:          []string{"tenant", "name", "subject", "id"}, Table: "quota_reservations",
	}
	QuotaDue = &Type{
		Name: "quota_due", Owner: "quota", Store: "dynamodb", Durability: Durable,
		Consistency:    "may lag behind the reservations: a step decides by the reservation itself",
		OnStoreFailure: "expired reservations are returned later",
		IfLost:         "expired reservations are not returned",
		TTL:            "removed when its reservation ends",
		Parts:          []string{"expires", "tenant", "name", "subject", "id"}, Table: "quota_reservations", Within: QuotaReservation,
	}
	QuotaReceipt = &Type{
		Name: "quota_receipt", Owner: "quota", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "a retry may take its units twice",
		TTL:            "the end of its window, else 24 h after the request",
		Parts:          []string{"tenant", "name", "subject", "window", "request_id"}, Table: "quota_receipts",
	}
	// Idempotency's space tells the keys that callers claim from those of the Idempotency-Key header.
	Idempotency = &Type{
		Name: "idempotency", Owner: "idempotency", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "a request that was completed can be carried out again",
		TTL:            "24 h after the record's end, which is decided by comparing instants",
		Parts:          []string{"tenant", "space", "key"}, Table: "idempotency",
	}
	APIKey = &Type{
		Name: "api_key", Owner: "auth", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable; nodes cache a key for at most 30 s",
		OnStoreFailure: "cached at most 30 s, then fail closed: 503",
		IfLost:         "callers are refused until a new key is made",
		TTL:            "kept after revocation, so that a revoked key is never added again",
		Parts:          []string{"key_id"}, Table: "api_keys",
	}
	// AuditEvent's position is the id, counted down, in the embedded store; in DynamoDB
	// it is a month and a shard, and the sort key is the id.
	AuditEvent = &Type{
		Name: "audit_event", Owner: "audit", Store: "dynamodb", Durability: Durable,
		Consistency:    "each event once; a page holds every event acknowledged before it was asked for",
		OnStoreFailure: "reading fails closed: 503; an event that cannot be stored within 2 s goes to the log, and what it tells of stands",
		IfLost:         "who did what is known from the logs alone",
		TTL:            "removed 400 days after the event",
		Parts:          []string{"tenant", "position"}, Table: "audit",
	}
)

var registry = []*Type{Session, UserEpoch, TenantEpoch, SessionData, RateBucket, ConcurrencySlot, ChargeRequest, TokenLease, DenyCache, AdvisoryLock, Lease, Fence, FenceFloor, ProtectedRecord, Quota, QuotaReservation, QuotaDue, QuotaReceipt, Idempotency, APIKey, AuditEvent, StoreMarker, Deployment}
