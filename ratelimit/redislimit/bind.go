package redislimit

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit"
)

var (
	//go:embed bind.lua
	bindSource string
	bindScript = redis.NewScript(bindSource)
)

var errBound = errors.New("what the id of the request is tied to cannot be read")

// bind ties an id to its request. Where it is another's, that is the outcome. The id lies
// in a slot of its own, so that it is found whatever the request counts for; it is not part
// of the step that charges, and need not be: the record beside the buckets makes that exact.
func (s *Store) bind(ctx context.Context, b ratelimit.Bind, now int64, buckets int) (ratelimit.Outcome, error) {
	if b.Key == "" {
		return ratelimit.Outcome{}, nil
	}
	if !s.opts.TakesNow {
		now = 0
	}
	key := s.named(keytype.ChargeRequest, b.Key, b.Key)
	content := b.Content
	if s.veil != nil {
		content = s.veil.Hide(content)
	}
	is, err := bindScript.Run(ctx, s.scripts, []string{key}, content, number(now), memory).Int()
	switch {
	case err != nil:
		return ratelimit.Outcome{}, s.faultAt(ctx, key, "bind", err)
	case is < 0:
		return ratelimit.Outcome{}, &ratelimit.FaultError{Reason: "corrupt", OfKey: true, Err: fmt.Errorf("redis bind: %w: %w", keytype.ErrUnavailable, errBound)}
	case is == 0:
		return ratelimit.Outcome{Mismatch: true, Verdicts: make([]ratelimit.Verdict, buckets), Source: Redis}, nil
	}
	return ratelimit.Outcome{}, nil
}
