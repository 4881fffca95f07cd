package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// One user among thousands is found, with the share of the checks that are its own, once
// the window of 10 s is over; and it is forgotten with the next one.
func TestHotKeys(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	hot := &ratelimit.HotKeys{}
	other := policy(limit("all", 1000, time.Second, 1000))
	other.Name = "other"
	limits, err := ratelimit.New(ratelimit.NewLocal(openMemory(t)), []ratelimit.Policy{policy(limit("user", 1000, time.Second, 1000)), other},
		ratelimit.Options{Now: func() time.Time { return now }, HotKeys: hot})
	if err != nil {
		t.Fatal(err)
	}
	check := func(policy, user string) {
		t.Helper()
		if _, err := limits.Check(t.Context(), "t", ratelimit.Request{Policy: policy, Descriptors: map[string]string{"user": user}, Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		user := strconv.Itoa(random.IntN(5000))
		if random.IntN(10) < 3 {
			user = "hot"
		}
		check("p", user)
	}
	check("other", "u")
	if early := hot.Hottest(now); len(early) != 0 {
		t.Errorf("before the window is over: %+v", early)
	}
	now = now.Add(10 * time.Second)
	for range 100 {
		check("other", "u")
	}
	found := hot.Hottest(now)
	if len(found) == 0 || found[len(found)-1].Policy != "p" {
		t.Fatalf("got %+v", found)
	}
	p := found[len(found)-1]
	t.Logf("%.3f of %d", p.Share, p.Checks)
	if p.Limit != "user" || fmt.Sprint(p.Bucket.Key[len(p.Bucket.Key)-3:]) != "hot" || p.Share < 0.24 || p.Share > 0.35 || p.Checks < 18_000 || p.Checks > 22_000 {
		t.Errorf("got %+v", p)
	}
	if len(found) == 2 && found[0].Share != 0 {
		t.Errorf("a share of one check: %+v", found[0])
	}
	now = now.Add(20 * time.Second)
	if later := hot.Hottest(now); len(later) != 0 {
		t.Errorf("when nobody asks any more: %+v", later)
	}
}
