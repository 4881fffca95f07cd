package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
)

// twoStep is a store that looks and writes in two steps, as a careless engine
// does. Its callers meet between the steps, so that it errs every time.
type twoStep struct {
	meet *sync.WaitGroup
	mu   sync.Mutex
	keys map[string]bool // guarded by mu
}

func (s *twoStep) claim(_ context.Context, key string) (bool, error) {
	s.mu.Lock()
	taken := s.keys[key]
	s.mu.Unlock()
	s.meet.Done()
	s.meet.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = true
	return !taken, nil
}

// claimFunc is a store whose whole behaviour is one function.
type claimFunc func(key string) (bool, error)

func (f claimFunc) claim(_ context.Context, key string) (bool, error) { return f(key) }

func TestSelfCheckRefusesStoreThatGrantsTwice(t *testing.T) {
	store := &twoStep{meet: new(sync.WaitGroup), keys: map[string]bool{}}
	store.meet.Add(checkCallers)
	err := selfCheck(t.Context(), store)
	if err == nil || !strings.Contains(err.Error(), "100 of 100 concurrent conditional writes to one key won") {
		t.Fatalf("selfCheck = %v, want a refusal that counts the winners", err)
	}
}

func TestSelfCheckRefusesStoreThatGrantsNever(t *testing.T) {
	err := selfCheck(t.Context(), claimFunc(func(string) (bool, error) { return false, nil }))
	if err == nil || !strings.Contains(err.Error(), "0 of 100") {
		t.Fatalf("selfCheck = %v, want a refusal", err)
	}
}

func TestSelfCheckRefusesStoreThatFails(t *testing.T) {
	broken := errors.New("broken")
	err := selfCheck(t.Context(), claimFunc(func(string) (bool, error) { return false, broken }))
	if !errors.Is(err, broken) {
		t.Fatalf("selfCheck = %v, want %v", err, broken)
	}
}

func TestSelfCheckAcceptsAtomicStore(t *testing.T) {
	var keys sync.Map
	err := selfCheck(t.Context(), claimFunc(func(key string) (bool, error) {
		_, taken := keys.LoadOrStore(key, true)
		return !taken, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
}
