package ratelimit

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/coordsvc/coordsvc/keytype"
)

// ErrMismatch refuses a request whose id came with another request before: with
// another policy, other descriptors or another cost.
var ErrMismatch = errors.New("ratelimit: the request id belongs to another request")

// A Bind ties a request id to what it came with first, for as long as it is known.
// The zero Bind ties nothing.
type Bind struct {
	Key     string // of type keytype.ChargeRequest: the id's own, whatever the buckets
	Content string // a hash of what it comes with, without a colon
}

// decide returns what to store under the key, and false where the id is another request's.
func (b Bind) decide(packed []byte, now int64) (State, bool, error) {
	if b.Key == "" {
		return State{}, true, nil
	}
	if packed != nil {
		at, content, err := unpackBound(packed)
		if err != nil || now < at+RequestMemory.Microseconds() {
			return State{}, content == b.Content, err
		}
	}
	bound := append(append(packNumbers(now), ':'), b.Content...)
	return State{Packed: bound, Full: now + RequestMemory.Microseconds()}, true, nil
}

// before decides unless the id is another request's.
func (b Bind) before(s Stored, now int64, buckets int, decide func(Stored) (Next, Outcome, error)) (Next, Outcome, error) {
	bound, ok, err := b.decide(s.Bound, now)
	if err != nil {
		return Next{}, Outcome{}, err
	}
	if !ok {
		return Next{}, Outcome{Mismatch: true, Verdicts: make([]Verdict, buckets)}, nil
	}
	next, out, err := decide(s)
	next.Bound = bound
	return next, out, err
}

// unpackBound reads "1:at:content".
func unpackBound(packed []byte) (at int64, content string, err error) {
	rest, err := cutFormat(packed)
	if err != nil {
		return 0, "", err
	}
	var n [1]int64
	if rest, err = cutNumbers(rest, n[:]); err != nil {
		return 0, "", err
	}
	content, rest, ok := cutText(rest)
	if !ok || len(rest) > 0 {
		return 0, "", errFormat
	}
	return n[0], content, nil
}

// named are the keys by which a request with an id is known: one beside its first
// bucket, which says that it was done, and one of the id alone, which says what it
// came with. Without an id there are none.
func (r Request) named(tenant, operation string) (record string, bind Bind) {
	if r.RequestID == "" {
		return "", Bind{}
	}
	content := r.content()
	return keytype.ChargeRequest.Key(tenant, operation, content, r.RequestID),
		Bind{Key: keytype.ChargeRequest.Key(tenant, operation, "", r.RequestID), Content: content}
}

// content is a hash of all but the id.
func (r Request) content() string {
	all := appendPart(nil, r.Policy)
	for _, name := range slices.Sorted(maps.Keys(r.Descriptors)) {
		all = appendPart(appendPart(all, name), r.Descriptors[name])
	}
	sum := sha256.Sum256(strconv.AppendInt(all, r.Cost, 10))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}
