package api

import (
	"errors"
	"regexp"
	"time"
)

// instantForm is RFC 3339 in UTC with exactly three fraction digits.
const instantForm = "2006-01-02T15:04:05.000Z"

// rfc3339 is the grammar, which time.Parse takes lightly.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)

// errInstant is well-formed JSON of the right type, but no instant.
var errInstant = errors.New("must be an RFC 3339 instant, for example 2026-01-02T15:04:05.000Z")

// An Instant is a moment, to the millisecond. It is written in UTC with exactly
// three fraction digits, and read from any RFC 3339 instant; finer digits are dropped.
type Instant struct{ time.Time }

// At is the instant of t.
func At(t time.Time) Instant { return Instant{t.UTC().Truncate(time.Millisecond)} }

// String is the instant as it is written.
func (i Instant) String() string { return i.UTC().Format(instantForm) }

// MarshalText writes the instant.
func (i Instant) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// MarshalJSON writes the instant. It stands here because the embedded time has one, too.
func (i Instant) MarshalJSON() ([]byte, error) { return []byte(`"` + i.String() + `"`), nil }

// UnmarshalText reads an instant.
func (i *Instant) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.RFC3339, string(text))
	if err != nil || !rfc3339.Match(text) {
		return errInstant
	}
	*i = At(t)
	return nil
}

// UnmarshalJSON reads an instant from a JSON string.
func (i *Instant) UnmarshalJSON(text []byte) error {
	if len(text) < 2 || text[0] != '"' || text[len(text)-1] != '"' {
		return errors.New("must be a string")
	}
	return i.UnmarshalText(text[1 : len(text)-1])
}
