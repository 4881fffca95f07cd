// Package ratelimit decides whether one more request may happen now.
//
// A request names a policy and describes itself. All limits of the policy must
// let it pass: one [Store] call takes the cost from every limit's bucket, or
// from none, so that a refused request charges nothing.
package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// Posture says what a policy answers while its store is unreachable.
type Posture string

// The postures.
const (
	FailOpen   Posture = "fail_open"
	FailClosed Posture = "fail_closed"
	Local      Posture = "local"
)

// Enforce is the stage of a policy whose refusals count.
const Enforce = "enforce"

// Source names what decided.
type Source string

// Memory is this process's own store.
const Memory Source = "memory"

// Algorithm names how a limit counts.
type Algorithm string

// TokenBucket refills at a constant rate up to a burst. Whatever the callers do,
// at most burst + rate·t units pass within any time t: with 17 per 30 s and a
// burst of 17 that is up to 34 within 30 s, 17 at once and 17 as they come back.
const TokenBucket Algorithm = "token_bucket"

// A Rate is Count units per Per.
type Rate struct {
	Count int64         // 1 to 10^9
	Per   time.Duration // 1 ms to 366 days, in whole microseconds
}

// A Limit is one rule of a policy.
//
// Every rate in its range is counted exactly, without floating point and
// without rounding from one request to the next. One bound ties Burst to Rate: an
// empty bucket must be full again within 36,600 days, so that its state fits
// integers of 53 bits, which is all that a script inside a store may have. A rate
// of 1 per 365 days allows a burst of 100.
type Limit struct {
	Name      string   // a-z, 0-9 and -, unique within the policy
	Key       []string // the descriptors that tell buckets apart, 1 to 16; a request must have them all
	Algorithm Algorithm
	Rate      Rate
	Burst     int64 // units that pass at once from full, 1 to 10^9
}

// A Policy is a named set of limits that must all allow.
type Policy struct {
	Name    string // a-z, 0-9 and -, unique
	Posture Posture
	Stage   string // Enforce
	Limits  []Limit
}

// DefaultPolicy is what the service enforces where nobody wrote a policy.
func DefaultPolicy() Policy {
	return Policy{
		Name: "default", Posture: Local, Stage: Enforce,
		Limits: []Limit{{
			Name: "user", Key: []string{"tenant", "user"}, Algorithm: TokenBucket,
			Rate: Rate{Count: 10, Per: time.Second}, Burst: 20,
		}},
	}
}

// MaxCost is the largest cost of a request.
const MaxCost = 1_000_000_000

// MaxDescriptors is how many descriptors a request may have.
const MaxDescriptors = 32

// A Request asks for Cost units.
type Request struct {
	Policy      string
	Descriptors map[string]string // what no limit's key names is ignored
	Cost        int64             // 1 to MaxCost
}

// A LimitState is what one limit said. Its durations are rounded up to whole milliseconds.
type LimitState struct {
	Name      string
	Algorithm Algorithm
	Limit     int64         // the burst
	Remaining int64         // whole units left after the call, which took nothing if it was refused or a Peek
	Reset     time.Duration // until the limit is full again
	Window    time.Duration // the time in which the burst refills
}

// A Decision is the answer of Check and Peek.
type Decision struct {
	Allowed    bool
	Policy     string
	Stage      string
	Limiting   string        // the refusing limit with the longest wait, "" where allowed
	RetryAfter time.Duration // until the same request passes if no other comes, in whole milliseconds; 0 where allowed
	Limits     []LimitState
	Source     Source
}

// ErrUnknownPolicy is returned for a policy that is not loaded.
var ErrUnknownPolicy = errors.New("ratelimit: unknown policy")

// A CostError refuses a cost that could never pass.
type CostError struct {
	LimitName string // the limit with the smallest capacity
	Capacity  int64
}

func (e *CostError) Error() string {
	return fmt.Sprintf("ratelimit: the cost exceeds the capacity %d of limit %s", e.Capacity, e.LimitName)
}

// A Store keeps the state of buckets: one small packed string each, which the
// bucket's Rule reads and writes.
//
// Take reads the states, decides as [Take.Decide] does and stores what that
// hands out, in one atomic step: no other Take sees some of its buckets charged
// and others not. A state that is absent or past its expiry means a full bucket,
// so a store may drop it then. It may also lose one before: that grants one fresh
// burst. A store with a clock of its own decides by that clock and not by
// Take.Now.
//
// A refusal is an Outcome. A fault is an error that wraps
// [keytype.ErrUnavailable] (nothing was charged) or
// [keytype.ErrOutcomeUnknown] (the request may have been charged), or the
// context's own error.
type Store interface {
	Take(ctx context.Context, t Take) (Outcome, error)
}

// Options of a limiter; the zero value works.
type Options struct {
	Now func() time.Time // nil = a clock that starts at time.Now and never steps
}

// A Limiter finds the policy and asks its store.
type Limiter struct {
	store    Store
	now      func() time.Time
	policies map[string]*policy
	version  string
}

// New makes a limiter over the store with a set of policies. Its error names
// everything that is wrong with them, one mistake a line.
func New(store Store, policies []Policy, opts Options) (*Limiter, error) {
	compiled, err := compile(policies)
	if err != nil {
		return nil, err
	}
	l := &Limiter{store: store, now: opts.Now, policies: compiled}
	if l.now == nil {
		l.now = steadyClock()
	}
	l.version, err = version(l.Policies())
	return l, err
}

// steadyClock reads the wall clock once and counts on from there: when somebody
// sets the clock, no bucket notices.
func steadyClock() func() time.Time {
	start := time.Now()
	return func() time.Time { return start.Add(time.Since(start)) }
}

// Check takes the cost from every limit of the policy, or from none. A refusal is
// a Decision. Errors: ErrUnknownPolicy; *CostError, whatever the state of the
// limits; *keytype.ValueError, also for a descriptor that a limit needs and the
// request lacks; and the faults of a [Store].
func (l *Limiter) Check(ctx context.Context, tenant string, req Request) (Decision, error) {
	return l.decide(ctx, tenant, req, false)
}

// Peek decides as Check would, and takes nothing.
func (l *Limiter) Peek(ctx context.Context, tenant string, req Request) (Decision, error) {
	return l.decide(ctx, tenant, req, true)
}

// Policies returns the loaded policies, by name.
func (l *Limiter) Policies() []Policy {
	all := make([]Policy, 0, len(l.policies))
	for _, p := range l.policies {
		all = append(all, p.clone())
	}
	slices.SortFunc(all, func(a, b Policy) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Policy finds a loaded policy: ErrUnknownPolicy.
func (l *Limiter) Policy(name string) (Policy, error) {
	p, ok := l.policies[name]
	if !ok {
		return Policy{}, ErrUnknownPolicy
	}
	return p.clone(), nil
}

// Version identifies the set of loaded policies: the same set has the same version on every node.
func (l *Limiter) Version() string { return l.version }

func (l *Limiter) decide(ctx context.Context, tenant string, req Request, peek bool) (Decision, error) {
	if err := req.check(tenant); err != nil {
		return Decision{}, err
	}
	p, ok := l.policies[req.Policy]
	if !ok {
		return Decision{}, ErrUnknownPolicy
	}
	buckets, err := p.buckets(tenant, req)
	if err != nil {
		return Decision{}, err
	}
	// An instant before 1970 has no state: such a clock stands still until then.
	now := max(0, l.now().UnixMicro())
	out, err := l.store.Take(ctx, Take{Buckets: buckets, Cost: req.Cost, Now: now, Peek: peek})
	if err != nil {
		return Decision{}, fmt.Errorf("decide by policy %q: %w", p.Name, err)
	}
	return p.decision(out), nil
}

func (r Request) check(tenant string) error {
	if err := cmp.Or(
		keytype.CheckID("tenant", tenant),
		keytype.CheckID("policy", r.Policy),
		keytype.CheckRange("cost", r.Cost, 1, MaxCost),
	); err != nil {
		return err
	}
	if len(r.Descriptors) > MaxDescriptors {
		return descriptorError("are more than %d", MaxDescriptors)
	}
	for name, value := range r.Descriptors {
		if err := keytype.CheckID("a name", name); err != nil {
			return descriptorError("must be ids: %v", err)
		}
		if err := keytype.CheckID("a value", value); err != nil {
			return descriptorError("must be ids: %v, that of %q", err, name)
		}
	}
	return nil
}

func descriptorError(format string, args ...any) error {
	return &keytype.ValueError{Field: "descriptors", Reason: fmt.Sprintf(format, args...)}
}
