package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/coordsvc/coordsvc/ratelimit"
)

// The canary of a policy file is 5 % of 100,000 identities, and the same ones in
// every process: the hash of their list is written down here.
func TestCanaryOfAPolicyFile(t *testing.T) {
	const identities = 100_000
	path := filepath.Join(t.TempDir(), "p.yaml")
	write(t, path, file("{name: l, key: [user], algorithm: gcra, rate: 1/365d, burst: 1}", "stage: {canary: 5}"))
	set, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	full, err := ratelimit.New(&listener{}, set.Policies, ratelimit.Options{}) // over a store that refuses everybody
	if err != nil {
		t.Fatal(err)
	}
	hash, chosen := sha256.New(), 0
	for i := range identities {
		if !check(t, full, "user", strconv.Itoa(i)).Allowed {
			chosen++
			fmt.Fprintln(hash, i)
		}
	}
	share := 100 * float64(chosen) / identities
	t.Logf("%.2f %%", share)
	if math.Abs(share-5) > 0.5 {
		t.Errorf("%.2f %% are in the canary, want 5", share)
	}
	const before = "10826611ab921e02"
	if got := hex.EncodeToString(hash.Sum(nil)[:8]); got != before {
		t.Errorf("other identities than in the process that wrote this test: %s", got)
	}
}

// What Explain says of an identity is what Check does.
func TestStagesInForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.yaml")
	for _, stage := range []string{"shadow", "warn", "{canary: 50}", "enforce"} {
		write(t, path, file("{name: l, key: [user], algorithm: gcra, rate: 1/365d, burst: 1}", "stage: "+stage))
		set, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		l := limiter(t, path)
		refused := 0
		for i := range 200 {
			user := fmt.Sprint(i)
			check(t, l, "user", user)
			d := check(t, l, "user", user)
			e, err := set.Explain(t.Context(), "t", "p", map[string]string{"user": user})
			if err != nil || e.Refuses == d.Allowed || d.Limiting != "l" {
				t.Errorf("stage %s, user %s: explained %+v, %v, decided %+v", stage, user, e, err, d)
			}
			if !d.Allowed {
				refused++
			}
		}
		ok := map[string]bool{"shadow": refused == 0, "warn": refused == 0, "{canary: 50}": refused > 60 && refused < 140, "enforce": refused == 200}
		if !ok[stage] {
			t.Errorf("stage %s refused %d of 200", stage, refused)
		}
	}
}
