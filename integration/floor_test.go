package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/integration/engine"
)

const acquireFor100ms = `{"owner":"w","ttl_ms":100}`

// L1, L4: after items were lost, or an old copy was put in their place, the raised
// floor keeps tokens from being handed out again.
func TestL1L4RaiseFloor(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		s := start(t)
		if a := s.call(200, "POST", "/v1/leases/r/acquire", acquireFor100ms); a.number("fencing_token") != 1 {
			t.Errorf("the first: %s", a.raw)
		}
		if _, stderr, err := output(t, s.env, "tables", "raise-floor"); err == nil || !strings.Contains(stderr, "end it first") {
			t.Errorf("while it is served: %v %s", err, stderr)
		}
		s.kill()
		if _, stderr, err := output(t, s.env, "tables", "raise-floor", "--to", "9007199254740991"); err == nil || !strings.Contains(stderr, "floor must be from 1") {
			t.Errorf("beyond the last token: %v %s", err, stderr)
		}
		if out, stderr, err := output(t, s.env, "tables", "raise-floor", "--to", "5000"); err != nil || !strings.HasPrefix(out, "floor 5000\n") {
			t.Errorf("raise-floor: %v %s %s", err, out, stderr)
		}
		s.restart()
		time.Sleep(110 * time.Millisecond) // the lease's own time
		if a := s.call(200, "POST", "/v1/leases/r/acquire", acquireFor100ms); a.number("fencing_token") != 5001 {
			t.Errorf("after it: %s", a.raw)
		}
	})
	t.Run("DynamoDB", func(t *testing.T) {
		db := engine.DynamoDB(t)
		env, key := production(t, db.Env(), db.Prefix(t))
		createTables(t, env)
		before := time.Now().UnixMilli()
		out, stderr, err := output(t, env, "tables", "raise-floor")
		if err != nil || !strings.Contains(out, "exceeds it") {
			t.Fatalf("raise-floor: %v %s %s", err, out, stderr)
		}
		s := start(t, env...)
		s.key = key
		if a := s.call(200, "POST", "/v1/leases/r/acquire", acquireFor100ms); a.number("fencing_token") <= before {
			t.Errorf("by default it is above the clock, which was %d: %s", before, a.raw)
		}
	})
}
