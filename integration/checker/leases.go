package checker

import (
	"context"
	"fmt"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/lease"
)

// keys are the protected records of a history's one resource.
var keys = [2]string{"k0", "k1"}

// A register is what the calls of a history act on: one resource with its records.
type register struct {
	lease   lease.State
	fence   fencing.State
	records [len(keys)]protected
}

// A protected is a fencing.Record that can be compared.
type protected struct {
	fencing.Position
	value   string
	version int64
	mode    fencing.Mode
}

func protectedOf(r fencing.Record) protected {
	return protected{r.Position, string(r.Value), r.Version, r.Mode}
}

func (r protected) record() fencing.Record {
	return fencing.Record{Position: r.Position, Value: []byte(r.value), Version: r.version, Mode: r.mode}
}

// become has the lease's next state, and what the fence knows of it.
func (r register) become(s lease.State) register {
	r.lease, r.fence.Granted, r.fence.Holder = s, s.Token, s.ID
	if s.Released {
		r.fence.Holder = ""
	}
	return r
}

// leaseStep is a step of the lease.
func leaseStep(decide func(fencing.State, lease.State) (lease.State, lease.Outcome)) func(any) (any, any) {
	return func(state any) (any, any) {
		r := state.(register)
		next, out := decide(r.fence, r.lease)
		if next == r.lease {
			return r, out
		}
		return r.become(next), out
	}
}

// recordedLeases remembers every call of a lease store.
type recordedLeases struct {
	lease.Store
	h *history
}

func same[A any](a A) any { return a }

// Acquire implements lease.Store.
func (s recordedLeases) Acquire(ctx context.Context, tenant, resource string, req lease.Acquire) (lease.Outcome, error) {
	name := fmt.Sprintf("acquire %s %s by %s", req.RequestID, req.ID, req.Owner)
	return record(ctx, s.h, call{name: name, anew: true, step: leaseStep(func(f fencing.State, l lease.State) (lease.State, lease.Outcome) { return l.Acquire(f, req) })}, same,
		func(ctx context.Context) (lease.Outcome, error) { return s.Store.Acquire(ctx, tenant, resource, req) })
}

// Renew implements lease.Store.
func (s recordedLeases) Renew(ctx context.Context, tenant, resource string, req lease.Renew) (lease.Outcome, error) {
	name := fmt.Sprintf("renew token %d at %v", req.Token, req.Now)
	return record(ctx, s.h, call{name: name, step: leaseStep(func(_ fencing.State, l lease.State) (lease.State, lease.Outcome) { return l.Renew(req) })}, same,
		func(ctx context.Context) (lease.Outcome, error) { return s.Store.Renew(ctx, tenant, resource, req) })
}

// Release implements lease.Store.
func (s recordedLeases) Release(ctx context.Context, tenant, resource string, holder lease.Holder) (lease.Outcome, error) {
	name := fmt.Sprintf("release token %d", holder.Token)
	return record(ctx, s.h, call{name: name, step: leaseStep(func(_ fencing.State, l lease.State) (lease.State, lease.Outcome) { return l.Release(holder) })}, same,
		func(ctx context.Context) (lease.Outcome, error) {
			return s.Store.Release(ctx, tenant, resource, holder)
		})
}

// Force implements lease.Store.
func (s recordedLeases) Force(ctx context.Context, tenant, resource string, req lease.Force) (lease.Outcome, error) {
	name := fmt.Sprintf("force token %d, %s", req.Token, req.RequestID)
	return record(ctx, s.h, call{name: name, step: leaseStep(func(f fencing.State, l lease.State) (lease.State, lease.Outcome) { return l.Force(f, req) })}, same,
		func(ctx context.Context) (lease.Outcome, error) { return s.Store.Force(ctx, tenant, resource, req) })
}

// Get implements lease.Store.
func (s recordedLeases) Get(ctx context.Context, tenant, resource string) (lease.State, error) {
	return record(ctx, s.h, call{name: "get", step: func(state any) (any, any) { return state, state.(register).lease }}, same,
		func(ctx context.Context) (lease.State, error) { return s.Store.Get(ctx, tenant, resource) })
}

// Together implements lease.Store, for a set of the one resource.
func (s recordedLeases) Together(ctx context.Context, tenant string, resources []string, decide lease.Decision) ([]lease.Outcome, error) {
	step := leaseStep(func(f fencing.State, l lease.State) (lease.State, lease.Outcome) { return decide(0, f, l) })
	return record(ctx, s.h, call{name: fmt.Sprintf("set %v", resources), step: step}, func(outs []lease.Outcome) any { return outs[0] },
		func(ctx context.Context) ([]lease.Outcome, error) {
			return s.Store.Together(ctx, tenant, resources, decide)
		})
}

// recordedFences remembers every call of a fencing store.
type recordedFences struct {
	fencing.Store
	h *history
}

// Admit implements fencing.Store.
func (s recordedFences) Admit(ctx context.Context, tenant, resource string, at fencing.Position) (fencing.Admission, error) {
	step := func(state any) (any, any) {
		r := state.(register)
		next, a := r.fence.Admit(at)
		r.fence = next
		return r, a
	}
	return record(ctx, s.h, call{name: fmt.Sprintf("admit %+v", at), step: step}, same,
		func(ctx context.Context) (fencing.Admission, error) { return s.Store.Admit(ctx, tenant, resource, at) })
}

// Mark implements fencing.Store.
func (s recordedFences) Mark(ctx context.Context, tenant, resource string) (fencing.Position, error) {
	return record(ctx, s.h, call{name: "mark", step: func(state any) (any, any) { return state, state.(register).fence.Mark }}, same,
		func(ctx context.Context) (fencing.Position, error) { return s.Store.Mark(ctx, tenant, resource) })
}

// written is a fencing.Written that can be compared.
type written struct {
	verdict fencing.Verdict
	record  protected
	granted fencing.Token
}

func comparableWritten(w fencing.Written) any {
	return written{w.Verdict, protectedOf(w.Record), w.Granted}
}

// Write implements fencing.Store.
func (s recordedFences) Write(ctx context.Context, tenant, resource, key string, w fencing.Write) (fencing.Written, error) {
	i := index(key)
	step := func(state any) (any, any) {
		r := state.(register)
		next, out := r.records[i].record().Write(r.fence, w)
		if out.Verdict == fencing.Accepted {
			r.records[i] = protectedOf(next)
		}
		return r, comparableWritten(out)
	}
	name := fmt.Sprintf("write %s %+v, %s, mode %s, lease %s", key, w.Position, w.Value, w.Mode, w.LeaseID)
	return record(ctx, s.h, call{name: name, step: step, once: true}, comparableWritten,
		func(ctx context.Context) (fencing.Written, error) {
			return s.Store.Write(ctx, tenant, resource, key, w)
		})
}

// Read implements fencing.Store.
func (s recordedFences) Read(ctx context.Context, tenant, resource, key string) (fencing.Record, error) {
	i := index(key)
	return record(ctx, s.h, call{name: "read " + key, step: func(state any) (any, any) { return state, state.(register).records[i] }},
		func(r fencing.Record) any { return protectedOf(r) },
		func(ctx context.Context) (fencing.Record, error) { return s.Store.Read(ctx, tenant, resource, key) })
}

func index(key string) int {
	if key == keys[0] {
		return 0
	}
	return 1
}
