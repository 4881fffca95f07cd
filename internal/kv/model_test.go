package kv_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/kv/kvtest"
)

// A model is the contract said with a map.
type model map[string]modelItem // by "bucket/key"

type modelItem struct {
	value   string
	expires time.Time
}

func (m model) scan(bucket, prefix, after string, limit int) (seen []string) {
	for _, at := range slices.Sorted(maps.Keys(m)) {
		key, ok := strings.CutPrefix(at, bucket+"/")
		if ok && strings.HasPrefix(key, prefix) && key > after && len(seen) < limit {
			seen = append(seen, key+"="+m[at].value)
		}
	}
	return seen
}

// sweep removes expired items, the oldest first. Which ones of the same age go is left to the store.
func (m model) sweep(now time.Time) (removed int) {
	for at, item := range m {
		if !item.expires.IsZero() && !item.expires.After(now) {
			delete(m, at)
			removed++
		}
	}
	return removed
}

var epoch = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

// Few names, with what tempts an ordered store: prefixes of each other, the lowest and the highest byte.
var (
	buckets  = rapid.SampledFrom([]string{"a", "aa", "b"})
	anyKey   = rapid.StringMatching("[\\x00a\u00ff]{1,3}")
	anyStart = rapid.StringMatching("[\\x00a\u00ff]{0,3}")
	expiries = rapid.Custom(func(t *rapid.T) time.Time {
		after := rapid.IntRange(0, 5).Draw(t, "expires")
		if after == 0 {
			return time.Time{}
		}
		return epoch.Add(time.Duration(after) * time.Second)
	})
)

var errRefused = errors.New("refused")

// transact runs one random transaction on all stores and on the model, and compares what each step saw.
func transact(t *rapid.T, m model, stores map[string]kvtest.Store) model {
	next := maps.Clone(m)
	var steps []func(kv.Tx) []string
	var want [][]string
	for range rapid.IntRange(1, 8).Draw(t, "steps") {
		step, saw := anyStep(t, next)
		steps, want = append(steps, step), append(want, saw)
	}
	refuse := rapid.IntRange(0, 3).Draw(t, "refuse") == 0
	for name, s := range stores {
		err := s.Update(context.Background(), func(tx kv.Tx) error {
			for i, step := range steps {
				if got := step(tx); !slices.Equal(got, want[i]) {
					t.Errorf("%s: step %d saw %q, want %q", name, i, got, want[i])
				}
			}
			if refuse {
				return errRefused
			}
			return nil
		})
		if refuse != errors.Is(err, errRefused) || !refuse && err != nil {
			t.Errorf("%s: Update: %v", name, err)
		}
	}
	if refuse {
		return m
	}
	return next
}

// anyStep does one step to the model, and returns it for the stores with what it must see.
func anyStep(t *rapid.T, m model) (step func(kv.Tx) []string, saw []string) {
	bucket, key := buckets.Draw(t, "bucket"), anyKey.Draw(t, "key")
	at := bucket + "/" + key
	switch rapid.SampledFrom([]string{"get", "put", "put", "delete", "scan"}).Draw(t, "step") {
	case "get":
		if item, ok := m[at]; ok {
			saw = []string{item.value}
		}
		return func(tx kv.Tx) []string {
			if value := tx.Get(bucket, key); value != nil {
				return []string{string(value)}
			}
			return nil
		}, saw
	case "put":
		item := modelItem{value: rapid.StringN(0, 2, 8).Draw(t, "value"), expires: expiries.Draw(t, "expires")}
		m[at] = item
		return func(tx kv.Tx) []string { tx.Put(bucket, key, []byte(item.value), item.expires); return nil }, nil
	case "delete":
		delete(m, at)
		return func(tx kv.Tx) []string { tx.Delete(bucket, key); return nil }, nil
	default:
		prefix, after := anyStart.Draw(t, "prefix"), anyStart.Draw(t, "after")
		limit := rapid.IntRange(1, 10).Draw(t, "limit")
		return func(tx kv.Tx) (seen []string) {
			tx.Scan(bucket, prefix, after, func(key string, value []byte) bool {
				seen = append(seen, fmt.Sprintf("%s=%s", key, value))
				return len(seen) < limit
			})
			return seen
		}, m.scan(bucket, prefix, after, limit)
	}
}

func TestStoresAgreeWithModel(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, "coord.db")
		_ = os.Remove(path)
		open := func() *kv.Bolt {
			b, err := kv.Open(path, kv.BoltOptions{NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		stores := map[string]kvtest.Store{"memory": kv.NewMemory(kv.MemoryOptions{}), "bolt": open()}
		defer func() { _ = stores["bolt"].Close() }()
		m := model{}
		t.Repeat(map[string]func(*rapid.T){
			"transact": func(t *rapid.T) { m = transact(t, m, stores) },
			"sweep": func(t *rapid.T) {
				now := epoch.Add(time.Duration(rapid.IntRange(0, 6).Draw(t, "now")) * time.Second)
				want := m.sweep(now)
				for name, s := range stores {
					if got, err := s.Sweep(context.Background(), now, 1000); got != want || err != nil {
						t.Errorf("%s: Sweep: %d, %v; want %d", name, got, err, want)
					}
				}
			},
			"reopen": func(t *rapid.T) {
				if err := stores["bolt"].Close(); err != nil {
					t.Fatal(err)
				}
				stores["bolt"] = open()
			},
			"": func(t *rapid.T) { compare(t, m, stores) },
		})
	})
}

func compare(t *rapid.T, m model, stores map[string]kvtest.Store) {
	var want []string
	for _, at := range slices.Sorted(maps.Keys(m)) {
		want = append(want, at+"="+m[at].value)
	}
	for name, s := range stores {
		var got []string
		err := s.Walk(context.Background(), func(bucket, key string, value []byte) bool {
			got = append(got, fmt.Sprintf("%s/%s=%s", bucket, key, value))
			return true
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q (%v)", name, got, want, err)
		}
	}
}
