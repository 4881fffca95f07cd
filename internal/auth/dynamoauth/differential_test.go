package dynamoauth_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/auth/authtest"
	"github.com/coordsvc/coordsvc/internal/kv"
)

// The same history has the same outcomes in DynamoDB and in memory. Lists, which
// may lag, are left to the conformance suite.
func TestSameAsInMemory(t *testing.T) {
	remote, _, _ := open(t)
	local := auth.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
	begin := time.UnixMilli(1_800_000_000_000).UTC()
	rapid.Check(t, func(rt *rapid.T) {
		// A few ids and tenants that no other history has.
		ids := []string{authtest.Record("", "").ID, authtest.Record("", "").ID, authtest.Record("", "").ID}
		tenants := []string{ids[0] + "a", ids[0] + "b"}
		steps := rapid.IntRange(1, 20).Draw(rt, "steps")
		for i := range steps {
			id, tenant := rapid.SampledFrom(ids).Draw(rt, "id"), rapid.SampledFrom(tenants).Draw(rt, "tenant")
			at := begin.Add(time.Duration(i) * time.Second)
			var outcomes [2]string
			op := rapid.SampledFrom([]string{"get", "insert", "revoke"}).Draw(rt, "op")
			rec := authtest.Record(tenant, fmt.Sprint(i), auth.LeasesRead)
			rec.ID = id
			for n, store := range []auth.Store{local, remote} {
				outcomes[n] = outcome(t, store, op, rec, at)
			}
			if outcomes[0] != outcomes[1] {
				rt.Fatalf("step %d, %s:\nmemory:   %s\ndynamodb: %s", i, op, outcomes[0], outcomes[1])
			}
		}
	})
}

func outcome(t *testing.T, s auth.Store, op string, rec auth.Record, at time.Time) string {
	ctx := t.Context()
	switch op {
	case "get":
		got, found, err := s.Get(ctx, rec.ID)
		return fmt.Sprintf("%+v %v %v", got, found, err)
	case "insert":
		got, err := s.Insert(ctx, rec)
		return fmt.Sprintf("%+v %v %v", got, reflect.DeepEqual(got, rec), err)
	default:
		found, err := s.Revoke(ctx, rec.Tenant, rec.ID, at)
		return fmt.Sprintf("%v %v", found, err)
	}
}
