package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/quota"
)

// Limits are swept by the clock that counts them, wherever the wall clock is.
func TestR37LimitsAreSweptByTheirOwnClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stores{
			limits: kv.NewMemory(kv.MemoryOptions{}), quotas: quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})),
			limitsNow: func() time.Time { return time.Now().Add(-25 * time.Hour) },
		}
		live := time.Now().Add(-24 * time.Hour)
		put := func(key string, expires time.Time) {
			if err := s.limits.Update(t.Context(), func(tx kv.Tx) error { tx.Put("b", key, []byte("1"), expires); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		put("live", live)
		put("expired", live.Add(-2*time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), 10*sweepInterval)
		defer cancel()
		if err := sweep(ctx, s, newQuotas(s, config{}), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		err := s.limits.View(t.Context(), func(tx kv.Tx) error {
			if tx.Get("b", "live") == nil || tx.Get("b", "expired") != nil {
				t.Error("swept by another clock")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A node of DynamoDB that does not know how far off its clock is neither returns units
// nor follows claims, however old these are.
func TestL23ASkewedNodeIsWiredSo(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	items := kv.NewMemory(kv.MemoryOptions{})
	right := stores{quotas: quota.NewLocal(items), records: idempotency.NewLocal(items)}
	unsure := right
	unsure.clock = dynamo.NewClock(time.Now)
	c := config{clockOffset: time.Until(now), leaseGuard: 2 * time.Second}
	id := quota.ID{Tenant: "t", Name: "n", Subject: "s"}
	if _, err := newQuotas(right, c).Set(t.Context(), id, quota.Definition{Limit: 1, Window: quota.None}); err != nil {
		t.Fatal(err)
	}
	if _, err := newQuotas(right, c).Reserve(t.Context(), id, quota.ReserveRequest{Amount: 1, RequestID: "q", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	req := idempotency.ClaimRequest{Fingerprint: "f", LockTTL: time.Second, TTL: time.Second}
	if _, err := newRecords(right, c, "s").Claim(t.Context(), "t", "k", req); err != nil {
		t.Fatal(err)
	}
	c.clockOffset += time.Hour
	if n, err := newQuotas(unsure, c).Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("%d reservations returned, %v", n, err)
	}
	if _, err := newRecords(unsure, c, "s").Claim(t.Context(), "t", "k", req); !errors.Is(err, idempotency.ErrClockSkew) {
		t.Errorf("the claim was followed: %v", err)
	}
	if n, err := newQuotas(right, c).Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("by a right clock %d reservations returned, %v", n, err)
	}
}
