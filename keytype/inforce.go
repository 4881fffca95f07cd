package keytype

import (
	"fmt"
	"time"
)

// InForce is what a type's promise amounts to on this node as it is set up now.
type InForce struct {
	Store      string
	Durability string
	Note       string
}

// Mode is the set-up that decides which promise is in force.
type Mode struct {
	DynamoDB bool // durable types live in DynamoDB, else in this node's file
	Redis    bool // there is one
	// StaleGrace is for how long beyond F sessions are answered from Redis while DynamoDB does not answer.
	StaleGrace time.Duration
}

// Available reports whether the type can be used in this mode.
func (m Mode) Available(t *Type) bool {
	switch t {
	case StoreMarker, DenyCache:
		return m.Redis
	case AdvisoryLock: // nodes that share tables would each grant it
		return m.Redis || !m.DynamoDB
	}
	return !m.DynamoDB || t.Durability == Ephemeral || t.Table != ""
}

// InForce says what holds for the type in this mode.
func (m Mode) InForce(t *Type) InForce {
	switch {
	case t == StoreMarker && m.Redis:
		return InForce{Store: "redis", Durability: "ephemeral", Note: "renewed by every node"}
	case t == DenyCache && m.Redis:
		return InForce{Store: "memory", Durability: "ephemeral, per process", Note: "what Redis refused, for at most 5 s"}
	case t == StoreMarker, t == DenyCache:
		return InForce{Store: "none", Durability: "none", Note: "there is no Redis"}
	case t == AdvisoryLock && m.Redis:
		return InForce{Store: "redis", Durability: "ephemeral, shared by all nodes on this Redis", Note: "may be granted twice; while Redis fails, refused"}
	case t == AdvisoryLock && m.DynamoDB:
		return InForce{Store: "none", Durability: "none", Note: "needs a Redis where nodes share tables"}
	case t.Durability == Ephemeral && t.Store == "redis" && m.Redis:
		return InForce{Store: "redis", Durability: "ephemeral, shared by all nodes on this Redis", Note: "while Redis fails, as each policy's posture says"}
	case t.Durability == Ephemeral:
		return InForce{Store: "memory", Durability: "ephemeral, per process", Note: "each process counts for itself; lost at a restart"}
	case !m.DynamoDB:
		return InForce{Store: "bbolt", Durability: "durable on this node only", Note: "one file in the data folder; an acknowledged write is on disk"}
	case !m.Available(t):
		return InForce{Store: "none", Durability: "none", Note: "not available with DynamoDB in this version"}
	case t.Cache != "" && m.Redis:
		return InForce{Store: "dynamodb, read through redis", Durability: string(t.Durability), Note: m.cached()}
	case t == TenantEpoch:
		return InForce{Store: "dynamodb", Durability: string(t.Durability), Note: "shared by all nodes on these tables" + m.inOutage("a known value counts for verify")}
	default:
		return InForce{Store: "dynamodb", Durability: string(t.Durability), Note: "shared by all nodes on these tables"}
	}
}

// cached says what the cache of sessions promises.
func (m Mode) cached() string {
	note := fmt.Sprintf("shared by all nodes on these tables; a change shows in every verify within %g s, at once where it says cache_propagated", (12*time.Second + m.StaleGrace).Seconds())
	return note + m.inOutage("verify goes on")
}

// inOutage says what a grace changes.
func (m Mode) inOutage(what string) string {
	if m.StaleGrace == 0 {
		return ""
	}
	return fmt.Sprintf("; while DynamoDB does not answer, %s for %g s, marked degraded after 10 s", what, (10*time.Second + m.StaleGrace).Seconds())
}
