package tokenlease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func keyOf(user string) Key {
	return Key{Policy: "p", Names: []string{"user"}, Descriptors: map[string]string{"user": user}}
}

// Keys whose hashes are equal, or which lie in one chain, are told apart, also while others go.
func TestKeysOfOneHash(t *testing.T) {
	table := newTable()
	const hash = 7
	opened := map[string]*account{}
	for i := range 5 {
		user := fmt.Sprint(i)
		opened[user] = table.open(hash+uint64(i/4)*heads, keyOf(user), 0)
	}
	if table.open(hash, keyOf("0"), 0) != opened["0"] || table.count != 5 {
		t.Errorf("a key was opened twice: %d", table.count)
	}
	another := keyOf("0")
	another.Version = 1
	if a := table.find(hash, another); a != nil {
		t.Error("another version is the same key")
	}
	for _, gone := range []string{"2", "4", "0"} { // in the middle, the first, the last
		table.remove(opened[gone])
		delete(opened, gone)
		for i := range 5 {
			user := fmt.Sprint(i)
			if got := table.find(hash+uint64(i/4)*heads, keyOf(user)); got != opened[user] {
				t.Errorf("without %s: %s is %v", gone, user, got)
			}
		}
	}
	table.remove(opened["3"])
	table.remove(opened["3"])
	if table.count != 1 {
		t.Errorf("%d are left", table.count)
	}
}

// A key that nobody asks for is forgotten, so that the table has room for others; where
// it has none, keys are left to the source.
func TestKeysAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(none{}, Options{})
		l.table.most = 100
		known := func() int {
			l.table.mu.Lock()
			defer l.table.mu.Unlock()
			return l.table.count
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go l.Run(ctx)
		for i := range 100 {
			if _, err := l.Spend(t.Context(), keyOf(fmt.Sprint(i)), 1); err != nil {
				t.Fatal(err)
			}
		}
		a, err := l.Spend(t.Context(), keyOf("one more"), 1)
		if err != nil || !a.Exact || known() != 100 {
			t.Errorf("of %d: %+v, %v", known(), a, err)
		}
		time.Sleep(forgetTime - sweepInterval)
		if known() != 100 {
			t.Errorf("%d are known", known())
		}
		time.Sleep(2 * time.Second)
		if known() != 0 {
			t.Errorf("%d are known still", known())
		}
	})
}

type none struct{}

func (none) Lease(context.Context, Ask) (Grant, error) { return Grant{}, nil }

func (none) Return(context.Context, Unspent) error { return nil }
