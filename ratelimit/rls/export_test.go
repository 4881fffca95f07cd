package rls

import (
	"context"
	"time"

	"google.golang.org/grpc/mem"
)

// WithPings shortens the times of pings for a test.
func (o Options) WithPings(after, timeout, least time.Duration) Options {
	o.pings = pings{after, timeout, least}
	return o
}

// UsualPings are those of a server that nobody told others.
func UsualPings() (after, timeout, least time.Duration) {
	return usualPings.after, usualPings.timeout, usualPings.least
}

// Answer is what happens to a request between the transport's reads and writes.
func (s *Server) Answer(ctx context.Context, raw []byte) error {
	c := newCodec()
	data := mem.BufferSlice{mem.SliceBuffer(raw)}
	resp, err := s.shouldRateLimit(ctx, func(v any) error { return c.Unmarshal(data, v) })
	if err != nil {
		return err
	}
	sent, err := c.Marshal(resp)
	sent.Free()
	return err
}
