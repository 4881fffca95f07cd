package keytype

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxID is the length of the longest id, in bytes.
const MaxID = 256

// A ValueError is a value that is well formed but not allowed.
type ValueError struct {
	Field  string // as in the HTTP API
	Reason string
}

func (e *ValueError) Error() string { return e.Field + " " + e.Reason }

// CheckID refuses, with a [*ValueError], what cannot be an id: ids are 1 to [MaxID] bytes of
// valid UTF-8 without control characters, and neither "." nor "..", which URL
// clients rewrite. Ids are compared byte for byte, without any normalization.
func CheckID(field, id string) error {
	switch {
	case id == "":
		return &ValueError{field, "is required"}
	case len(id) > MaxID:
		return &ValueError{field, fmt.Sprintf("is longer than %d bytes", MaxID)}
	case !utf8.ValidString(id):
		return &ValueError{field, "is not valid UTF-8"}
	case id == "." || id == "..":
		return &ValueError{field, `must not be "." or ".."`}
	case strings.ContainsFunc(id, unicode.IsControl):
		return &ValueError{field, "contains a control character"}
	}
	return nil
}

// CheckRange refuses, with a [*ValueError], a number outside low to high, both included.
func CheckRange(field string, n, low, high int64) error {
	if n < low || n > high {
		return &ValueError{field, fmt.Sprintf("must be from %d to %d", low, high)}
	}
	return nil
}
