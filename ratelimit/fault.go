package ratelimit

import (
	"errors"

	"github.com/coordsvc/coordsvc/keytype"
)

// Reasons why a store did not decide. A store that knows more says so in a word of
// its own, a-z and _.
const (
	ReasonTimeout     = "timeout"      // no answer within the budget
	ReasonBreakerOpen = "breaker_open" // not asked, because it failed just before
	ReasonStoreError  = "store_error"  // anything that has no word
)

// A FaultError is a store's failure with its reason. It wraps the failure.
type FaultError struct {
	Reason string
	Err    error
	OfKey  bool // the store answers, and only what it has under one key, or beside it, is to blame
	// Together, where not nil, is the same for calls that were sent together and failed
	// together: one lost connection is one failure, however many waited for it. It is also
	// the same for all that go to one of several parts of a store.
	Together error
}

func (e *FaultError) Error() string { return e.Reason + ": " + e.Err.Error() }

func (e *FaultError) Unwrap() error { return e.Err }

// isFault tells a failure of the store from the end of the caller's context and from a defect.
func isFault(err error) bool {
	return errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown)
}

// togetherOf is what the failure shares with others, nil where with none.
func togetherOf(err error) error {
	if e, ok := errors.AsType[*FaultError](err); ok {
		return e.Together
	}
	return nil
}

// isOutage tells a failure of the store from one that only concerns a key.
func isOutage(err error) bool {
	e, ok := errors.AsType[*FaultError](err)
	return err != nil && (!ok || !e.OfKey)
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*FaultError](err); ok {
		return e.Reason
	}
	return ReasonStoreError
}
