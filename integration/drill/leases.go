package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/client"
)

// leases are taken, renewed, written under, and released or left to expire.
type leases struct {
	*pillar

	ledger sync.Mutex // guards the rest
	books  map[string]*book
	grants int
	writes int
	lost   int // acknowledged grants that did not hold
}

// A book is what was acknowledged about one resource.
type book struct {
	holds []*hold
	wrote position // the highest acknowledged write
}

// A hold is one grant. Its holder counts on it until then.
type hold struct {
	token    int64
	answered time.Time
	until    time.Time
}

type position struct{ token, sequence int64 }

const leaseTTL = 3 * time.Second

func (l *leases) live(ctx context.Context, d *Drill, worker int) {
	resource := fmt.Sprint("r", rand.IntN(4))
	var g client.Grant
	sent := time.Now()
	if l.call(func() (err error) {
		g, err = d.node().AcquireLease(ctx, resource, api.AcquireLease{Owner: fmt.Sprint("w", worker), TTLMS: leaseTTL.Milliseconds(), WaitMS: new(int64(1000))})
		return err
	}) != nil {
		pause(20 * time.Millisecond)
		return
	}
	h := l.granted(resource, g, sent)
	for sequence := int64(1); sequence <= 4; sequence++ {
		pause(30 * time.Millisecond)
		l.write(ctx, d, resource, g, h, sequence)
		if !l.renew(ctx, d, resource, g, h) {
			return
		}
	}
	l.ledger.Lock()
	h.until = time.Now()
	l.ledger.Unlock()
	if rand.IntN(10) == 0 {
		return // a holder that dies
	}
	_ = l.call(func() error {
		return d.node().ReleaseLease(ctx, resource, api.ReleaseLease{LeaseID: g.LeaseID, FencingToken: g.FencingToken})
	})
}

func (l *leases) loses(what string, args ...any) {
	l.lost++ // with ledger held
	l.breaks(fmt.Sprintf(what, args...))
}

// granted notes a grant, which no other may overlap, and whose token is larger than all before.
func (l *leases) granted(resource string, g client.Grant, sent time.Time) *hold {
	now := time.Now()
	h := &hold{token: g.FencingToken, answered: now, until: g.Until}
	l.ledger.Lock()
	defer l.ledger.Unlock()
	l.grants++
	b := l.books[resource]
	if b == nil {
		b = &book{}
		l.books[resource] = b
	}
	for _, other := range b.holds {
		switch {
		case other.token == h.token, other.token > h.token && other.answered.Before(sent):
			l.loses("%s: token %d was granted after %d", resource, h.token, other.token)
		case other.token < h.token && now.Before(other.until):
			l.loses("%s: token %d was granted %v before the end of %d", resource, h.token, other.until.Sub(now).Round(time.Millisecond), other.token)
		}
	}
	b.holds = append(b.holds, h)
	return h
}

// renew reports whether the holder may go on.
func (l *leases) renew(ctx context.Context, d *Drill, resource string, g client.Grant, h *hold) bool {
	var next client.Grant
	err := l.call(func() (err error) {
		next, err = d.node().RenewLease(ctx, resource, api.RenewLease{LeaseID: g.LeaseID, FencingToken: g.FencingToken, TTLMS: leaseTTL.Milliseconds()})
		return err
	})
	l.ledger.Lock()
	defer l.ledger.Unlock()
	switch {
	case err == nil:
		h.until = next.Until
	case client.IsCode(err, api.CodeLeaseLost, api.CodeLeaseExpired):
		if early := time.Until(h.until); early > 0 {
			l.loses("%s: the holder of token %d was refused %v before its end", resource, h.token, early.Round(time.Millisecond))
		}
		return false
	}
	return time.Now().Before(h.until)
}

// write writes a record under the token: a holder is not refused, and no token below an acknowledged one is let in.
func (l *leases) write(ctx context.Context, d *Drill, resource string, g client.Grant, h *hold, sequence int64) {
	l.ledger.Lock()
	before := l.books[resource].wrote
	l.ledger.Unlock()
	err := l.call(func() error {
		_, err := d.node().WriteProtected(ctx, resource, "record", api.WriteProtected{
			FencingToken: g.FencingToken, LeaseID: &g.LeaseID, Sequence: &sequence, Value: json.RawMessage(fmt.Sprint(sequence)),
		})
		return err
	})
	l.ledger.Lock()
	defer l.ledger.Unlock()
	b := l.books[resource]
	switch {
	case err == nil && before.token > h.token:
		l.loses("%s: a write with token %d was accepted after one with %d", resource, h.token, before.token)
	case err == nil:
		l.writes++
		if p := (position{h.token, sequence}); p.token > b.wrote.token || p.token == b.wrote.token && p.sequence > b.wrote.sequence {
			b.wrote = p
		}
	case client.IsCode(err, api.CodeStaleFencingToken) && time.Now().Before(h.until):
		l.loses("%s: the holder of token %d was refused as stale", resource, h.token)
	}
}

// settle compares what is stored with what was acknowledged.
func (l *leases) settle(ctx context.Context, d *Drill) {
	for resource, b := range l.books {
		var stored api.Lease
		var record api.ProtectedRecord
		err := d.persist(ctx, func(c *client.Client) (err error) {
			if stored, err = c.Lease(ctx, resource); err == nil && b.wrote != (position{}) {
				record, err = c.ReadProtected(ctx, resource, "record")
			}
			return err
		})
		if err != nil {
			l.breaks("nobody reads " + resource + ": " + err.Error())
			continue
		}
		for _, h := range b.holds {
			if stored.FencingToken < h.token {
				l.loses("%s: token %d was acknowledged, %d is stored", resource, h.token, stored.FencingToken)
			}
		}
		if at := (position{record.FencingToken, record.Sequence}); at.token < b.wrote.token || at.token == b.wrote.token && at.sequence < b.wrote.sequence {
			l.loses("%s: a write at %v was acknowledged, %v is stored", resource, b.wrote, at)
		}
	}
}

func (l *leases) facts() string {
	return fmt.Sprintf("%d grants and %d writes acknowledged; lost %d", l.grants, l.writes, l.lost)
}
