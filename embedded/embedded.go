// Package embedded decides where the local stores of session, ratelimit, lease,
// fencing, quota, idempotency and lock keep their items: in one file, or in memory. It
// is for programs that use these packages as libraries; the service opens its own.
//
// What it returns goes to the NewLocal of each package. Stores over the same
// items see each other: a lease's tokens count for its fence.
//
// A file is durable on this machine alone, and for one process: several nodes want
// the stores on DynamoDB and Redis. When the disk fails, whatever needs it fails
// closed, with keytype.ErrUnavailable or keytype.ErrOutcomeUnknown. Items that have
// expired count for nothing, and stay until somebody calls the Sweep method of what
// was opened, for example once a minute; what must never go has no expiry.
package embedded

import (
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// Open opens or creates the file, for its owner only; its folder must exist. An
// acknowledged write is on disk. One process at a time has the file open; another
// gets an error after half a second. Close it when nothing uses it any more.
func Open(path string) (*kv.Bolt, error) { return kv.Open(path, kv.BoltOptions{}) }

// Memory keeps items as long as the process lives.
func Memory() *kv.Memory { return kv.NewMemory(kv.MemoryOptions{}) }

// Bounded keeps at most maxItems, 1 or more, in memory, and beyond that gives up
// those not used for longest: for rate limits, never for what must not be lost. Ids of
// requests to limits have as much room of their own, so that many of them make no limit full.
func Bounded(maxItems int) *kv.Memory {
	return kv.NewMemory(kv.MemoryOptions{MaxItems: maxItems, Apart: []string{keytype.ChargeRequest.Bucket()}})
}
