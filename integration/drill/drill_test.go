package drill

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/client"
)

// saying is a drill of a node that answers everything with the answer.
func saying(t *testing.T, answer any) *Drill {
	t.Helper()
	body, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
	t.Cleanup(server.Close)
	d, err := New(Config{URLs: []string{server.URL}, Key: "k", Limit: 50})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestALateRevocationIsNoticed(t *testing.T) {
	d := saying(t, api.Verdict{Active: true})
	for _, tc := range []struct {
		ago  time.Duration
		lost int
	}{{5 * time.Second, 0}, {Staleness - time.Second, 0}, {Staleness + time.Second, 1}} {
		if err := d.sessions.judge(t.Context(), d.node(), ended{token: "cst_x", how: "revoke", at: time.Now().Add(-tc.ago)}); err != nil {
			t.Fatal(err)
		}
		if d.sessions.lost != tc.lost || d.sessions.worst < tc.ago || len(d.sessions.broken) != tc.lost {
			t.Errorf("active %v later: %d lost, worst %v: %v", tc.ago, d.sessions.lost, d.sessions.worst, d.sessions.broken)
		}
	}
}

func TestALostLeaseIsNoticed(t *testing.T) {
	now := time.Now()
	grant := func(token int64, until time.Duration) client.Grant {
		return client.Grant{LeaseGrant: api.LeaseGrant{FencingToken: token}, Until: now.Add(until)}
	}
	for name, tc := range map[string]struct {
		first, second client.Grant
		sent          time.Duration // of the second's request
		lost          int
	}{
		"one after the other":        {grant(1, -time.Second), grant(2, time.Minute), time.Second, 0},
		"two at a time":              {grant(1, time.Minute), grant(2, time.Minute), time.Second, 1},
		"the same token again":       {grant(1, -time.Second), grant(1, time.Minute), time.Second, 1},
		"a smaller token":            {grant(2, -time.Second), grant(1, time.Minute), time.Second, 1},
		"an answer that came late":   {grant(2, time.Minute), grant(1, -time.Second), -time.Minute, 0},
		"the end of what came first": {grant(1, 0), grant(2, time.Minute), time.Second, 0},
	} {
		d := saying(t, nil)
		d.leases.granted("r", tc.first, now)
		d.leases.granted("r", tc.second, now.Add(tc.sent))
		if d.leases.lost != tc.lost {
			t.Errorf("%s: %d lost, want %d: %v", name, d.leases.lost, tc.lost, d.leases.broken)
		}
	}
	d := saying(t, api.Lease{FencingToken: 1})
	d.leases.granted("r", grant(2, time.Minute), now)
	d.leases.settle(t.Context(), d)
	if d.leases.lost != 1 {
		t.Errorf("a token that is not stored: %v", d.leases.broken)
	}
}

func TestTooMuchThatPassesIsNoticed(t *testing.T) {
	for _, tc := range []struct {
		passed map[string]int64
		broken int
	}{
		{map[string]int64{"redis": 50*11 + 50*3, "local": 5*11*3 + 5*4}, 0},
		{map[string]int64{"redis": 50*11 + 50*3 + 1}, 1},
		{map[string]int64{"local": 5*11*3 + 5*4 + 1}, 1},
		{map[string]int64{"fail_open": 1}, 1},
	} {
		d := saying(t, nil)
		d.limits.took, d.limits.passed = 10*time.Second, tc.passed
		what := fmt.Sprint(tc.passed)
		if d.limits.facts(50, Faults{Losses: 2, Lives: 4, Nodes: 3}); len(d.limits.broken) != tc.broken {
			t.Errorf("%s: %v", what, d.limits.broken)
		}
	}
}

func TestUnitsThatAreLostOrTakenTwiceAreNoticed(t *testing.T) {
	for _, tc := range []struct{ used, acked, unknown, lost int64 }{{50, 50, 0, 0}, {60, 50, 10, 0}, {40, 50, 0, 1}, {60, 50, 0, 1}, {110, 50, 90, 1}} {
		d := saying(t, api.Quota{Used: tc.used})
		d.quotas.subjects = []*subject{{"s", tc.acked, tc.unknown}}
		if d.quotas.settle(t.Context(), d); int64(d.quotas.lost) != tc.lost {
			t.Errorf("%+v: %v", tc, d.quotas.broken)
		}
	}
}

func TestADrillThatDoesTooLittleFails(t *testing.T) {
	var out strings.Builder
	if broken := saying(t, nil).Report(&out, Faults{}); len(broken) != 1 || !strings.Contains(out.String(), "sessions") {
		t.Errorf("%v\n%s", broken, out.String())
	}
}
