// Package locktest decides whether a lock.Store keeps its contract.
package locktest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/lock"
)

// A Bench is an empty store and its time.
type Bench struct {
	Store lock.Store
	Pass  func(time.Duration) // lets so much time pass for the store
	Now   func() time.Time    // what callers hand in as now
}

// Run checks the stores that open returns; it is called once for each case.
func Run(t *testing.T, open func(t *testing.T) Bench) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := &bench{T: t, Bench: open(t), tenant: "t", name: "n"}
			for _, s := range c.steps {
				if got := s.do(b); got != s.want {
					t.Errorf("%s:\n got %s\nwant %s", s.why, got, s.want)
				}
			}
		})
	}
	t.Run("race for one lock", func(t *testing.T) { race(t, open(t)) })
}

// A step says what is done, what must come of it and why.
type step struct {
	why  string
	do   func(*bench) string
	want string
}

type bench struct {
	*testing.T
	Bench
	tenant, name string
}

func acquire(id string, ttl time.Duration) func(*bench) string {
	return func(b *bench) string {
		out, err := b.Store.Acquire(b.Context(), b.tenant, b.name, lock.Acquire{ID: id, Owner: "the owner of " + id, Now: b.Now(), TTL: ttl})
		return describe(out, err)
	}
}

func renew(id string, ttl time.Duration) func(*bench) string {
	return func(b *bench) string {
		out, err := b.Store.Renew(b.Context(), b.tenant, b.name, lock.Renew{ID: id, Now: b.Now(), TTL: ttl})
		return describe(out, err)
	}
}

func release(id string) func(*bench) string {
	return func(b *bench) string {
		out, err := b.Store.Release(b.Context(), b.tenant, b.name, lock.Release{ID: id, Now: b.Now()})
		return describe(out, err)
	}
}

func pass(d time.Duration) func(*bench) string {
	return func(b *bench) string {
		b.Pass(d)
		return ""
	}
}

// at takes the step with another lock.
func at(tenant, name string, do func(*bench) string) func(*bench) string {
	return func(b *bench) string { return do(&bench{T: b.T, Bench: b.Bench, tenant: tenant, name: name}) }
}

// describe shows the verdict and how long the lock lasts, in whole minutes, rounded up: a
// store's own clock goes on meanwhile.
func describe(out lock.Outcome, err error) string {
	if err != nil {
		return err.Error()
	}
	text := map[lock.Verdict]string{lock.Done: "done", lock.Held: "held", lock.Lost: "lost"}[out.Verdict]
	if out.Left == 0 {
		return text
	}
	return fmt.Sprintf("%s, %d left", text, (out.Left+time.Minute-1)/time.Minute)
}

// race lets many callers contend for a lock, again and again: at no moment do two hold it.
func race(t *testing.T, b Bench) {
	const rounds = 20
	m := lock.New(b.Store, lock.Options{Now: b.Now})
	var holders, grants atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for grants.Load() < rounds && t.Context().Err() == nil {
				g, err := m.Acquire(t.Context(), "t", "n", "racer", time.Hour)
				if _, held := errors.AsType[*lock.HeldError](err); held {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				grants.Add(1)
				holders.Add(-1)
				if err := m.Release(t.Context(), "t", "n", g.ID); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}
