package client

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// A ProblemError is an answer of the service that is no success. Its Code says what
// it means, Retryable whether the same request may succeed later, and the other
// fields come with the codes that the contract names them for.
type ProblemError struct {
	api.Problem
	// RetryAfter is how long the service asks to wait; 0 = it names no time.
	RetryAfter time.Duration

	raw     []byte // the body, which for a refused check is the whole decision
	unknown bool   // an earlier try may have had its effect
}

func (e *ProblemError) Error() string {
	return fmt.Sprintf("%s (%d): %s", e.Code, e.Status, e.Detail)
}

// sentinels are the errors of the libraries that mean the same.
var sentinels = map[api.ProblemCode]error{
	api.CodeStoreUnavailable: keytype.ErrUnavailable,
	api.CodeOutcomeUnknown:   keytype.ErrOutcomeUnknown,
	api.CodeClockSkew:        lease.ErrClockSkew,
	api.CodeLeaseLost:        lease.ErrLost,
	api.CodeLeaseExpired:     lease.ErrExpired,
	api.CodeRequestExpired:   lease.ErrRequestExpired,
}

// Is makes it the libraries' error of the same meaning, and keytype.ErrOutcomeUnknown
// where it speaks of the last try alone, and an earlier one may have had its effect.
func (e *ProblemError) Is(target error) bool {
	if e.unknown {
		return target == keytype.ErrOutcomeUnknown
	}
	sentinel, ok := sentinels[e.Code]
	return ok && target == sentinel
}

// A NoAnswerError says that no answer came, or none that is this service's.
type NoAnswerError struct {
	Sent bool // the request, in one of its tries, may have arrived, and had its effect
	Err  error

	retryAfter time.Duration // how long a proxy asks to wait
}

func (e *NoAnswerError) Error() string { return "no answer: " + e.Err.Error() }

// Unwrap returns what became of the request instead.
func (e *NoAnswerError) Unwrap() error { return e.Err }

// Is makes it keytype.ErrOutcomeUnknown or, where nothing was sent, keytype.ErrUnavailable.
func (e *NoAnswerError) Is(target error) bool {
	if e.Sent {
		return target == keytype.ErrOutcomeUnknown
	}
	return target == keytype.ErrUnavailable
}

// IsCode reports whether the error is an answer with one of the codes.
func IsCode(err error, codes ...api.ProblemCode) bool {
	p, ok := errors.AsType[*ProblemError](err)
	return ok && slices.Contains(codes, p.Code)
}
