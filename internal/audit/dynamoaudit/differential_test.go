package dynamoaudit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/internal/audit"
	"github.com/coordsvc/coordsvc/internal/audit/audittest"
	"github.com/coordsvc/coordsvc/internal/kv"
)

// The same history has the same outcomes in DynamoDB, in memory and in a plain sorted slice.
func TestStoresAgree(t *testing.T) {
	remote, _, _ := open(t)
	local := audit.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
	history := 0
	rapid.Check(t, func(rt *rapid.T) {
		history++
		tenant := fmt.Sprintf("t%d", history)
		var model []audit.Event // newest first
		// Few instants, around a month's end and a year's, so that ids meet.
		id := rapid.Custom(func(rt *rapid.T) audit.ID {
			edge := rapid.SampledFrom([]int{0, 1, 11}).Draw(rt, "month")
			ms := time.Duration(rapid.IntRange(-2, 2).Draw(rt, "ms")) * time.Millisecond
			return audittest.ID(time.Date(2026, time.Month(1+edge), 1, 0, 0, 0, 0, time.UTC).Add(ms), rapid.Byte().Draw(rt, "n")%10)
		})
		for i := range rapid.IntRange(1, 30).Draw(rt, "steps") {
			if rapid.IntRange(0, 3).Draw(rt, "what") > 0 {
				e := audittest.Event(tenant, id.Draw(rt, "id"))
				e.Repeats = rapid.IntRange(0, 1).Draw(rt, "repeats")
				taken := slices.IndexFunc(model, func(old audit.Event) bool { return old.ID == e.ID })
				want := taken < 0 || model[taken] == e
				if taken < 0 {
					model = append(model, e)
					slices.SortFunc(model, func(a, b audit.Event) int { return b.ID.Compare(a.ID) })
				}
				for n, s := range []audit.Store{local, remote} {
					if err := s.Append(t.Context(), e); (err == nil) != want {
						rt.Fatalf("step %d, store %d: append: %v, want %v", i, n, err, want)
					}
				}
				continue
			}
			oldest, before := id.Draw(rt, "oldest"), id.Draw(rt, "before")
			limit := rapid.IntRange(1, 8).Draw(rt, "limit")
			var want []audit.Event
			for _, e := range model {
				if e.ID.Compare(oldest) >= 0 && e.ID.Compare(before) < 0 && len(want) < limit {
					want = append(want, e)
				}
			}
			for n, s := range []audit.Store{local, remote} {
				if got, err := s.Page(t.Context(), tenant, oldest, before, limit); err != nil || !slices.Equal(got, want) {
					rt.Fatalf("step %d, store %d: page: %v, %v\nwant %v", i, n, got, err, want)
				}
			}
		}
	})
}
