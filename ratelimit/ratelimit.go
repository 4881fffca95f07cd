// Package ratelimit decides whether one more request may happen now.
//
// A request names a policy and describes itself. All limits of the policy must
// let it pass: one [Store] call takes the cost from every limit's bucket, or
// from none, so that a refused request charges nothing.
//
// Buckets are ephemeral: one that is lost grants a fresh burst. While the store fails
// each policy's [Posture] decides, and the [Decision] says so.
package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// Source names what decided.
type Source string

// Memory is this process's own store.
const Memory Source = "memory"

// DefaultPolicy is what the service enforces where nobody wrote a policy.
func DefaultPolicy() Policy {
	return Policy{
		Name: "default", Posture: Local, Stage: Enforce,
		Limits: []Limit{{
			Name: "user", Key: []string{"tenant", "user"}, Algorithm: TokenBucket,
			Numbers: Numbers{Rate: Rate{Count: 10, Per: time.Second}, Burst: 20},
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
	// RequestID makes a repetition exact, for ten minutes: once a request passed, it
	// takes nothing more. An id belongs to the policy, the descriptors and the cost that
	// it first came with, whether that passed or not; with others it is refused. "" =
	// none. Check and Refund count their ids apart, and each tenant has its own.
	RequestID string
}

// A LimitState is what one limit said. Its durations are rounded up to whole milliseconds.
type LimitState struct {
	Name      string
	Algorithm Algorithm
	Limit     int64         // the capacity: units that pass at once from full
	Remaining int64         // whole units left after the call, which took nothing if it was refused or a Peek
	Reset     time.Duration // until the limit is full again
	Window    time.Duration // the time in which the capacity comes back
}

// A Decision is the answer of Check and Peek.
type Decision struct {
	Allowed    bool
	Policy     string
	Stage      Stage
	Limiting   string        // the refusing limit with the longest wait, also where the stage lets its refusal not count; else ""
	RetryAfter time.Duration // until the same request passes if no other comes, in whole milliseconds; 0 where allowed
	Delay      time.Duration // how long to wait before going on, in whole milliseconds: the longest of the leaky buckets
	SlotID     string        // what to release where a limit hands out slots, else ""
	OverBy     int64         // with stage Warn: by how many percent of the Limiting limit the request was over, rounded up
	// EnforceFrom is the date of a policy with stage Warn, where the request was over.
	EnforceFrom time.Time
	Limits      []LimitState
	Source      Source
	// Degraded says that the store did not decide but the policy's posture, for DegradedReason.
	Degraded       bool
	DegradedReason string // that of a FaultError
	// MaxOvershoot, of a policy with mode Leased where a lease answered, is by how much all
	// nodes together may let more pass than the limits say.
	MaxOvershoot int64
}

// ErrUnknownPolicy is returned for a policy that is not loaded.
var ErrUnknownPolicy = errors.New("ratelimit: unknown policy")

// ErrNoSlots is returned by Release for a policy that hands out no slots.
var ErrNoSlots = errors.New("ratelimit: the policy has no limit with slots")

// A CostError refuses a cost that could never pass.
type CostError struct {
	LimitName string // the limit with the smallest capacity
	Capacity  int64
	Uncounted bool // of CheckParts: by its stage the policy refuses no such request
}

func (e *CostError) Error() string {
	return fmt.Sprintf("ratelimit: the cost exceeds the capacity %d of limit %s", e.Capacity, e.LimitName)
}

// A Store keeps the state of buckets: one small packed string each, which the
// bucket's Rule reads and writes.
//
// Take and Give read the states, decide as [Take.Decide] and [Give.Decide] do and
// store what those hand out, in one atomic step: no other call sees some of the
// buckets changed and others not. A store whose buckets lie apart may take tag by
// tag and give back when a later one refuses. A state that is absent or past its
// expiry means a full bucket, so a store may drop it then. It may also lose one
// before: that grants one fresh burst. A store with a clock of its own decides by
// that clock and not by Take.Now.
//
// A Bind is decided before anything else, and stays whatever is decided then. A
// store may do so in a step of its own.
//
// Forget makes buckets full and frees their slots.
//
// A refusal is an Outcome. A fault is an error that wraps
// [keytype.ErrUnavailable] (nothing was charged) or
// [keytype.ErrOutcomeUnknown] (the request may have been charged), or the
// context's own error.
type Store interface {
	Take(ctx context.Context, t Take) (Outcome, error)
	Give(ctx context.Context, g Give) (Outcome, error)
	Forget(ctx context.Context, buckets []Bucket) error
}

// Options of a limiter; the zero value works.
type Options struct {
	Now func() time.Time // nil = that of Clock; a Store that forgets what has expired must not be ahead of it
	// Fallback decides for policies with posture Local while the store fails. Where it
	// is nil the store cannot fail apart from this process: its faults are errors
	// whatever the posture.
	Fallback Store
	Bypassed func(reason string) // called for every answer under a posture
	// DenyCache makes the limiter remember what the store refused, until it would pass and
	// for at most 5 s, and refuse the same and more by itself for as long. A refund or a
	// reset by this limiter, and Replace, end that at once; one elsewhere shows up to 5 s
	// later. It is for a store beyond this process.
	DenyCache bool
	// Leases has this limiter take and spend batches for policies with mode Leased, which
	// else are decided as with Exact. It is for a store beyond this process.
	Leases  bool
	Leased  func(policy string, event tokenlease.Event, units int64) // called for units that it took, and returned, and lost
	HotKeys *HotKeys                                                 // counts which buckets the store is asked for, nil = nobody does
	// Decided is called for every Check that was decided, with its Decision. An answer
	// of a policy that is closed is one, not Allowed and with SourceFailClosed.
	Decided func(Decision)
}

// A Limiter finds the policy and asks its store.
type Limiter struct {
	store    Store
	fallback Store
	bypassed func(reason string)
	decided  func(Decision)
	now      func() time.Time
	turns    *turns
	hot      *HotKeys
	denies   bool               // whether refusals are remembered
	lessee   *tokenlease.Lessee // nil where nothing is leased
	loaded   atomic.Pointer[set]
	loads    atomic.Uint64
}

// A set is the policies that are loaded together.
type set struct {
	policies map[string]*policy
	version  string
	number   uint64   // of the sets that this limiter loaded
	denials  *denials // nil where none are remembered
}

// New makes a limiter over the store with a set of policies. Its error names
// everything that is wrong with them, one mistake a line.
func New(store Store, policies []Policy, opts Options) (*Limiter, error) {
	l := &Limiter{store: store, fallback: opts.Fallback, bypassed: opts.Bypassed, decided: opts.Decided, now: opts.Now, denies: opts.DenyCache, turns: newTurns(), hot: opts.HotKeys}
	if l.bypassed == nil {
		l.bypassed = func(string) {}
	}
	if l.decided == nil {
		l.decided = func(Decision) {}
	}
	if l.now == nil {
		l.now = Clock()
	}
	if opts.Leases {
		l.lessee = tokenlease.New(lessor{l}, tokenlease.Options{Observe: opts.Leased})
	}
	if err := l.Replace(policies); err != nil {
		return nil, err
	}
	return l, nil
}

// Replace loads another set of policies, all at once: every decision is by the set
// before or by the new one. What was used stays used where a limit keeps its name
// and key. Its error is that of New, and leaves the set before.
func (l *Limiter) Replace(policies []Policy) error {
	compiled, err := compile(policies)
	if err != nil {
		return err
	}
	next := &set{policies: compiled, number: l.loads.Add(1)}
	if next.version, err = version(next.all()); err != nil {
		return err
	}
	if l.denies {
		next.rememberDenials()
	}
	l.loaded.Store(next)
	return nil
}

// Policies returns the loaded policies, by name, and the version of the set.
func (l *Limiter) Policies() (policies []Policy, version string) {
	loaded := l.loaded.Load()
	return loaded.all(), loaded.version
}

func (s *set) all() []Policy {
	all := make([]Policy, 0, len(s.policies))
	for _, p := range s.policies {
		all = append(all, p.clone())
	}
	slices.SortFunc(all, func(a, b Policy) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Policy finds a loaded policy, and tells the version of the set: ErrUnknownPolicy.
func (l *Limiter) Policy(name string) (one Policy, version string, err error) {
	loaded := l.loaded.Load()
	p, ok := loaded.policies[name]
	if !ok {
		return Policy{}, "", ErrUnknownPolicy
	}
	return p.clone(), loaded.version, nil
}

// Version identifies the set of loaded policies: the same set has the same version on every node.
func (l *Limiter) Version() string { return l.loaded.Load().version }

func (r Request) check(tenant string) error {
	if err := cmp.Or(
		keytype.CheckID("tenant", tenant),
		keytype.CheckID("policy", r.Policy),
		keytype.CheckRange("cost", r.Cost, 1, MaxCost),
	); err != nil {
		return err
	}
	if r.RequestID != "" {
		if err := keytype.CheckID("request_id", r.RequestID); err != nil {
			return err
		}
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
