package dynamosession_test

import (
	"testing"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/dynamosession"
	"github.com/coordsvc/coordsvc/session/sessiontest"
)

var _ session.Durable = (*dynamosession.Store)(nil)

func open(t *testing.T) session.Store {
	t.Helper()
	e := engine.DynamoDB(t)
	prefix := e.Prefix(t)
	if err := dynamo.Create(t.Context(), e.Client(), dynamosession.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	return dynamosession.New(e.Client(), prefix)
}

func openMemory(*testing.T) session.Store {
	return session.NewLocal(kv.NewMemory(kv.MemoryOptions{}))
}

func TestStore(t *testing.T) { sessiontest.RunDurable(t, open) }

// The same histories have the same answers in memory and in DynamoDB.
func TestStoresAgree(t *testing.T) { sessiontest.History(t, openMemory, open) }
