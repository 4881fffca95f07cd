// Package ratelimit decides whether one more request may happen now.
package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Posture says what a policy answers while its store is unreachable.
type Posture string

// The postures.
const (
	FailOpen   Posture = "fail_open"
	FailClosed Posture = "fail_closed"
	Local      Posture = "local"
)

// Source names what decided.
type Source string

// Memory is this process's own store.
const Memory Source = "memory"

// Algorithm names how a limit counts.
type Algorithm string

// TokenBucket refills at a constant rate up to a burst.
const TokenBucket Algorithm = "token_bucket"

// A Rate is Count units per Per.
type Rate struct {
	Count int64
	Per   time.Duration
}

// A Limit is one rule of a policy.
type Limit struct {
	Name      string
	Key       []string // the descriptors that tell buckets apart
	Algorithm Algorithm
	Rate      Rate
	Burst     int64 // units that pass at once from full
}

// A Policy is a named set of limits that must all allow.
type Policy struct {
	Name    string
	Posture Posture
	Stage   string // "enforce"
	Limits  []Limit
}

// A Request asks for Cost units.
type Request struct {
	Policy      string
	Descriptors map[string]string
	Cost        int64 // 1 to 10^9
}

// A LimitState is what one limit said.
type LimitState struct {
	Name      string
	Algorithm Algorithm
	Limit     int64         // the burst
	Remaining int64         // whole units left
	Reset     time.Duration // until the limit is full again
	Window    time.Duration // the time in which the burst refills
}

// A Decision is the answer of Check and Peek.
type Decision struct {
	Allowed    bool
	Policy     string
	Stage      string
	Limiting   string        // the refusing limit with the longest wait
	RetryAfter time.Duration // until the same request could pass; 0 where allowed
	Limits     []LimitState
	Source     Source
}

// ErrUnknownPolicy is returned for a policy that is not loaded.
var ErrUnknownPolicy = errors.New("ratelimit: unknown policy")

// A CostError refuses a cost that could never pass.
type CostError struct {
	LimitName string
	Capacity  int64
}

func (e *CostError) Error() string {
	return fmt.Sprintf("ratelimit: the cost exceeds the capacity %d of limit %s", e.Capacity, e.LimitName)
}

// Options of a limiter; the zero value works.
type Options struct {
	Now func() time.Time // time.Now where nil
}

// A Limiter finds the policy and asks its store.
type Limiter struct {
	store Store
	opts  Options
}

// New makes a limiter over the store with a set of policies, or says what is wrong with them.
func New(store Store, policies []Policy, opts Options) (*Limiter, error) { panic("to be written") }

// Check takes the cost from every limit of the policy, or from none. ErrUnknownPolicy, *CostError, *keytype.ValueError (a missing descriptor).
func (l *Limiter) Check(ctx context.Context, tenant string, req Request) (Decision, error) {
	panic("to be written")
}

// Peek answers what Check would, and takes nothing.
func (l *Limiter) Peek(ctx context.Context, tenant string, req Request) (Decision, error) {
	panic("to be written")
}

// Policies returns the loaded policies, by name.
func (l *Limiter) Policies() []Policy { panic("to be written") }

// Policy finds a loaded policy: ErrUnknownPolicy.
func (l *Limiter) Policy(name string) (Policy, error) { panic("to be written") }

// Version identifies the set of loaded policies: the same set has the same version on every node.
func (l *Limiter) Version() string { panic("to be written") }

// Store is to be written.
type Store interface{}
