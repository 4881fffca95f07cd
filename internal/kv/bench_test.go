package kv_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
)

var value = make([]byte, 300) // about a session

func benchBolt(b *testing.B) *kv.Bolt {
	b.Helper()
	s, err := kv.Open(filepath.Join(b.TempDir(), "coord.db"), kv.BoltOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// benchUpdate is one read and one write of an item that expires.
func benchUpdate(b *testing.B, s kv.Store, key string) {
	err := s.Update(b.Context(), func(tx kv.Tx) error {
		tx.Get("things", key)
		tx.Put("things", key, value, time.Unix(2e9, 0))
		return nil
	})
	if err != nil {
		b.Error(err)
	}
}

func BenchmarkBoltLoneWriter(b *testing.B) {
	s := benchBolt(b)
	for i := 0; b.Loop(); i++ {
		benchUpdate(b, s, strconv.Itoa(i%10_000))
	}
}

func BenchmarkBoltWritersAtOnce(b *testing.B) {
	for _, writers := range []int{8, 64, 512} {
		b.Run(strconv.Itoa(writers), func(b *testing.B) {
			s := benchBolt(b)
			var n atomic.Int64
			b.SetParallelism(writers / 2) // times GOMAXPROCS
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					benchUpdate(b, s, strconv.Itoa(int(n.Add(1))%10_000))
				}
			})
		})
	}
}

func BenchmarkBoltView(b *testing.B) {
	s := benchBolt(b)
	benchUpdate(b, s, "a")
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_ = s.View(b.Context(), func(tx kv.Tx) error { tx.Get("things", "a"); return nil })
		}
	})
}

func BenchmarkMemoryUpdate(b *testing.B) {
	for _, items := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("of_%d_items", items), func(b *testing.B) {
			s := kv.NewMemory(kv.MemoryOptions{MaxItems: items})
			for i := range items {
				benchUpdate(b, s, strconv.Itoa(i))
			}
			for i := items; b.Loop(); i++ { // each evicts one
				benchUpdate(b, s, strconv.Itoa(i))
			}
		})
	}
}
