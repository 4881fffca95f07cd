package ratelimittest

import (
	"testing"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// pendingCharges ends charges in every way, also after the policy has changed.
func pendingCharges(t *testing.T, store ratelimit.Store) {
	slow := bucketOf(1, 10*sec, 10)
	other := bucketOf(1, 20*sec, 10)
	for _, c := range []struct {
		why       string
		end       ratelimit.End
		after     int64 // microseconds after the charge
		rule      ratelimit.Rule
		slots     int64 // that are free then, of 10
		remaining int64 // of 10, 10 s after the charge
		again     bool  // whether the same request then is a repetition
	}{
		{"nothing ends it", "", 0, slow, 6, 6, true},
		{"it stays", ratelimit.Settled, 0, slow, 6, 7, true},
		{"it goes back", ratelimit.Undone, ms, slow, 10, 10, false},
		{"it stays under another rate", ratelimit.Settled, 0, other, 6, 6, true},
		{"it goes back under another rate", ratelimit.Undone, 0, other, 10, 10, false},
		{"it goes back when it has lapsed", ratelimit.Undone, 10 * sec, slow, 10, 9, false},
	} {
		buckets := func(rule ratelimit.Rule) []ratelimit.Bucket {
			return []ratelimit.Bucket{
				{Key: c.why, Rule: rule, Tag: "tag"},
				{Key: c.why + " slots", Rule: ruleOf(ratelimit.Concurrency, 10, 60*sec, 10), Tag: "tag"},
			}
		}
		at := start - start%(5*sec) // the first instant of an age
		charge := ratelimit.Take{Buckets: buckets(slow), Cost: 4, Now: at, SlotID: "s", Record: c.why, Pending: true}
		if out := do(t, store, charge); !out.Allowed || out.Verdicts[0].Remaining != 6 {
			t.Errorf("%s: charged: got %+v", c.why, out)
		}
		charge.Buckets = buckets(c.rule)
		if c.end != "" {
			end := ratelimit.Give{Buckets: charge.Buckets, Cost: 4, Now: at + c.after, Charged: at, SlotID: "s", Record: c.why, Ends: c.end}
			if out := give(t, store, end); out.Repeated || out.Verdicts[1].Remaining != c.slots {
				t.Errorf("%s: got %+v", c.why, out)
			}
			if out := give(t, store, end); !out.Repeated {
				t.Errorf("%s: twice: got %+v", c.why, out)
			}
		}
		look := ratelimit.Take{Buckets: charge.Buckets, Cost: 1, Now: at + 10*sec - us, Peek: true}
		if c.after > 9*sec || c.end == ratelimit.Settled && c.rule == slow {
			look.Now = at + 10*sec
		}
		if out := do(t, store, look); out.Verdicts[0].Remaining != c.remaining {
			t.Errorf("%s: then %d are left, want %d", c.why, out.Verdicts[0].Remaining, c.remaining)
		}
		charge.Now, charge.SlotID = at+10*sec, "another"
		if out := do(t, store, charge); !out.Allowed || out.Repeated != c.again {
			t.Errorf("%s: the same request: got %+v", c.why, out)
		}
	}
}
