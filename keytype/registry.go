package keytype

// The registered types. A type is added by the change that first writes it.
var (
	Session = &Type{
		Name: "session", Owner: "session", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable per user",
		OnStoreFailure: "fail closed: 503, never a verdict",
		IfLost:         "cannot be lost without losing the durable store",
		TTL:            "removed after its absolute expiry; expiry itself is decided by comparing instants",
		Parts:          []string{"user_tag", "session_id"},
	}
	UserEpoch = &Type{
		Name: "user_epoch", Owner: "session", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable per user",
		OnStoreFailure: "fail closed: 503, never a verdict",
		IfLost:         "cannot be lost without losing the durable store",
		TTL:            "kept while the user exists",
		Parts:          []string{"user_tag"},
	}
	RateBucket = &Type{
		Name: "rate_bucket", Owner: "ratelimit", Store: "memory", Durability: Ephemeral,
		Consistency:    "linearizable per key within one process",
		OnStoreFailure: "cannot fail apart from the process",
		IfLost:         "one fresh burst",
		TTL:            "the time until the bucket is full again, rounded up",
		Parts:          []string{"tenant", "policy", "limit", "descriptors"},
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
	ProtectedRecord = &Type{
		Name: "protected_record", Owner: "fencing", Store: "dynamodb", Durability: DurableFenced,
		Consistency:    "linearizable",
		OnStoreFailure: "fail closed: 503",
		IfLost:         "the value and its guard against stale writers are gone",
		TTL:            "never removed",
		Parts:          []string{"tenant", "resource", "key"}, Table: "protected",
	}
	APIKey = &Type{
		Name: "api_key", Owner: "auth", Store: "dynamodb", Durability: Durable,
		Consistency:    "linearizable; nodes cache a key for at most 30 s",
		OnStoreFailure: "cached at most 30 s, then fail closed: 503",
		IfLost:         "callers are refused until a new key is made",
		TTL:            "kept after revocation, so that a revoked key is never added again",
		Parts:          []string{"key_id"}, Table: "api_keys",
	}
)

var registry = []*Type{Session, UserEpoch, RateBucket, Lease, Fence, ProtectedRecord, APIKey}
