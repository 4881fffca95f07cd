package drill

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/client"
)

// quotas are used up, one subject after the other.
type quotas struct {
	*pillar

	subjects []*subject // guarded by mu
	lost     int
}

// A subject is one quota that its worker alone uses.
type subject struct {
	name           string
	acked, unknown int64
}

const quotaLimit = 100

func (q *quotas) live(ctx context.Context, d *Drill, worker int) {
	s := &subject{name: fmt.Sprintf("s%d-%d", worker, mathrand.Uint64())}
	if q.call(func() error {
		_, err := d.node().SetQuota(ctx, "drill", s.name, api.SetQuota{Limit: quotaLimit, Window: json.RawMessage(`"none"`)})
		return err
	}) != nil {
		pause(50 * time.Millisecond)
		return
	}
	q.mu.Lock()
	q.subjects = append(q.subjects, s)
	q.mu.Unlock()
	for range quotaLimit/10 + 3 {
		q.consume(ctx, d, s)
		pause(40 * time.Millisecond)
	}
}

// consume takes ten units, and sometimes asks a second node for the same ones.
func (q *quotas) consume(ctx context.Context, d *Drill, s *subject) {
	req := api.ConsumeQuota{Amount: 10, RequestID: rand.Text()}
	ask := func() error {
		return q.call(func() error {
			_, err := d.node().ConsumeQuota(ctx, "drill", s.name, req)
			return err
		})
	}
	err := ask()
	acked := err == nil
	if mathrand.IntN(3) == 0 || err != nil && !client.IsCode(err, api.CodeQuotaExceeded) {
		err = ask()
		acked = acked || err == nil
	}
	switch {
	case acked:
		s.acked += req.Amount
	case !client.IsCode(err, api.CodeQuotaExceeded):
		s.unknown += req.Amount
	}
}

// settle compares what was taken with what was acknowledged.
func (q *quotas) settle(ctx context.Context, d *Drill) {
	for _, s := range q.subjects {
		var stored api.Quota
		if err := d.persist(ctx, func(c *client.Client) (err error) {
			stored, err = c.Quota(ctx, "drill", s.name)
			return err
		}); err != nil {
			q.breaks("nobody reads " + s.name + ": " + err.Error())
			continue
		}
		if stored.Used < s.acked || stored.Used > min(s.acked+s.unknown, quotaLimit) {
			q.lost++
			q.breaks(fmt.Sprintf("%s: %d units used, %d acknowledged and %d unknown", s.name, stored.Used, s.acked, s.unknown))
		}
	}
}

func (q *quotas) facts() string {
	var units int64
	for _, s := range q.subjects {
		units += s.acked
	}
	return fmt.Sprintf("%d units of %d subjects acknowledged; lost or taken twice %d", units, len(q.subjects), q.lost)
}
