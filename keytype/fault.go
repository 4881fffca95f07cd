package keytype

import "errors"

// What a store's failure means to the caller of a write. Every store wraps the
// cause of a failure in one of these; anything else is a defect.
var (
	// ErrUnavailable means that the store did not take the operation: it had no effect.
	ErrUnavailable = errors.New("keytype: the store is unavailable")
	// ErrOutcomeUnknown means that the answer never came: the operation may have happened.
	ErrOutcomeUnknown = errors.New("keytype: the outcome is unknown")
)
