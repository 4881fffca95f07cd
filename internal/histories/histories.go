// Package histories decides how many random histories are enough: as many as show
// every outcome that a test names, since one that none met was not tested.
package histories

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// most is how often a set of histories is drawn before a lacking outcome fails the test.
const most = 10

// Check checks the property by rapid until seen, which the property counts up, names
// each of the wanted outcomes, and fails the test if it never does.
func Check(t *testing.T, seen map[string]int, wanted []string, property func(*rapid.T)) {
	t.Helper()
	lacks := func(outcome string) bool { return seen[outcome] == 0 }
	for range most {
		rapid.Check(t, property)
		if t.Failed() || !slices.ContainsFunc(wanted, lacks) {
			break
		}
	}
	for _, outcome := range slices.DeleteFunc(slices.Clone(wanted), func(o string) bool { return !lacks(o) }) {
		t.Errorf("no history had the outcome %q", outcome)
	}
	t.Logf("outcomes: %v", seen)
}
