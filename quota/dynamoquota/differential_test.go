package dynamoquota_test

import (
	"testing"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/quotatest"
)

// DynamoDB and the store in memory give the same answers to the same random histories.
func TestStoresAgree(t *testing.T) {
	e := engine.DynamoDB(t)
	quotatest.Agree(t, map[string]quota.Store{
		"DynamoDB": open(t, e.Client(), e.Prefix(t)),
		"memory":   quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})),
	})
}
