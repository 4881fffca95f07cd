package tokenlease_test

import (
	"context"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit/tokenlease"
)

// BenchmarkSpend is one decision: allowed from a batch, also by several goroutines that
// share a key, and refused because the source has refused.
func BenchmarkSpend(b *testing.B) {
	named := tokenlease.Key{Tenant: "default", Policy: "search", Names: []string{"tenant", "user"}, Descriptors: map[string]string{"tenant": "shop-1", "user": "user-42"}}
	unnamed := named
	unnamed.Names = nil
	for _, c := range []struct {
		name string
		key  tokenlease.Key
	}{{"allowed", named}, {"allowed, all descriptors count", unnamed}} {
		b.Run(c.name, func(b *testing.B) {
			l := tokenlease.New(plenty{}, tokenlease.Options{})
			warm(b, l, c.key)
			b.ReportAllocs()
			for b.Loop() {
				if a, err := l.Spend(b.Context(), c.key, 1); err != nil || !a.Allowed && !a.Exact {
					b.Fatal(a, err)
				}
			}
		})
	}
	b.Run("allowed, in parallel", func(b *testing.B) {
		l := tokenlease.New(plenty{}, tokenlease.Options{})
		warm(b, l, named)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if a, err := l.Spend(b.Context(), named, 1); err != nil || !a.Allowed && !a.Exact {
					b.Error(a, err)
				}
			}
		})
	})
	b.Run("refused", func(b *testing.B) {
		l := tokenlease.New(nothing{}, tokenlease.Options{})
		for range tokenlease.MinBatch {
			if _, err := l.Spend(b.Context(), named, 1); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			if a, err := l.Spend(b.Context(), named, 1); err != nil || a.Allowed {
				b.Fatal(a, err)
			}
		}
	})
}

func warm(b *testing.B, l *tokenlease.Lessee, key tokenlease.Key) {
	for range 10_000 {
		if _, err := l.Spend(b.Context(), key, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// plenty grants whatever is wanted.
type plenty struct{}

func (plenty) Lease(_ context.Context, ask tokenlease.Ask) (tokenlease.Grant, error) {
	return tokenlease.Grant{Granted: ask.Want, ValidFor: time.Second, MaxOvershoot: 500, Room: -1}, nil
}

func (plenty) Return(context.Context, tokenlease.Unspent) error { return nil }

// nothing is left, for an hour.
type nothing struct{}

func (nothing) Lease(context.Context, tokenlease.Ask) (tokenlease.Grant, error) {
	return tokenlease.Grant{RetryAfter: time.Hour, Room: -1}, nil
}

func (nothing) Return(context.Context, tokenlease.Unspent) error { return nil }
