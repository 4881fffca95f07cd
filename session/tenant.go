package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/keytype"
)

// tenantIdle is for how long after its last request a tenant's epoch is read again in the background.
const tenantIdle = time.Minute

// epochTime is how long a request waits for an epoch that it needs.
const epochTime = 5 * time.Second

// errTenants says that the manager was made without Tenants.
var errTenants = errors.New("session: the manager was made without Tenants")

// TenantsOptions of Tenants; the zero value works.
type TenantsOptions struct {
	Fresh time.Duration // F, 10 s: no longer than that an epoch counts after it was read
	// StaleGrace is for how much longer it counts where it cannot be read, for verify
	// alone, and where a cache answers, as degraded. It goes with that of a [ReadThrough].
	StaleGrace time.Duration
	Now        func() time.Time // time.Now where nil
	Elsewhere  Elsewhere        // whose bound may be larger; nil: nobody
}

// Tenants knows the epoch of each tenant: a session that was made under a smaller one
// is dead. So a whole tenant is logged out by one write. An epoch is read again when
// it is half of Fresh old, and where that fails for all of Fresh the manager answers
// with the failure: no verify that starts Fresh + StaleGrace after the write is active.
//
// A session carries the epoch that was read when it was made: it is dead only if the
// tenant was logged out since, or at the same time.
type Tenants struct {
	store interface {
		TenantEpoch(ctx context.Context, tenant string) (int64, error)
		RaiseTenantEpoch(ctx context.Context, tenant string) (int64, error)
	}
	fresh time.Duration
	grace time.Duration
	now   func() time.Time
	other Elsewhere

	mu    sync.Mutex
	known map[string]*tenantEpoch // guarded by mu
}

// A tenantEpoch is what is known of one tenant. Its fields are guarded by the mutex of Tenants.
type tenantEpoch struct {
	epoch   int64
	read    time.Time  // when the read began, zero before the first
	used    time.Time  // when it was last asked for
	reading *epochRead // nil while nobody does
}

// An epochRead is a read under way.
type epochRead struct {
	done chan struct{} // closed once the rest is set
	err  error
	left bool // who read gave up, which says nothing of the store
}

// NewTenants makes them over the store.
func NewTenants(store Store, opts TenantsOptions) *Tenants {
	t := &Tenants{store: store, fresh: orDefault(opts.Fresh, 10*time.Second), grace: opts.StaleGrace, now: opts.Now, known: map[string]*tenantEpoch{}}
	if t.now == nil {
		t.now = time.Now
	}
	if t.other = opts.Elsewhere; t.other == nil {
		t.other = nowhere
	}
	return t
}

// LogoutTenant ends every session of the tenant, at the latest Fresh + StaleGrace from now.
func (m *Manager) LogoutTenant(ctx context.Context, tenant string) (Propagation, error) {
	if m.opts.Tenants == nil {
		return Propagation{}, errTenants
	}
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return Propagation{}, err
	}
	epoch, err := m.opts.Tenants.store.RaiseTenantEpoch(ctx, tenant)
	if err != nil {
		return Propagation{}, err
	}
	t := m.opts.Tenants
	t.learn(tenant, epoch, time.Time{})
	latest := t.fresh + t.grace
	if yes, bound := t.other(); yes {
		latest = max(latest, bound)
	}
	return Propagation{EffectiveBy: m.clock().Add(latest)}, nil
}

// Poll reads the epochs of the tenants in use again before a request has to wait for
// that, until ctx ends. A read that fails is tried again.
func (t *Tenants) Poll(ctx context.Context) {
	tick := time.NewTicker(t.fresh / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, tenant := range t.due() {
			_ = t.refresh(ctx, tenant, t.fresh/4, false) // whoever asks while it fails is told
		}
	}
}

// due names the tenants in use, and forgets the others once nothing counts that is known of them.
func (t *Tenants) due() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	maps.DeleteFunc(t.known, func(_ string, e *tenantEpoch) bool { return now.Sub(e.used) >= max(tenantIdle, t.fresh+t.grace) })
	return slices.Collect(maps.Keys(t.known))
}

// epoch is what sessions are held against; nil Tenants hold them against nothing.
func (t *Tenants) epoch(ctx context.Context, tenant string) (int64, error) {
	if t == nil {
		return 0, nil
	}
	epoch, age := t.look(tenant)
	if age < t.fresh/2 {
		return epoch, nil
	}
	if age < t.fresh { // it still counts: one of those who ask reads, and not for long
		short, cancel := context.WithTimeout(ctx, t.patience())
		defer cancel()
		_ = t.refresh(short, tenant, t.fresh/2, false)
		epoch, _ = t.look(tenant)
		return epoch, nil
	}
	short, cancel := context.WithTimeout(ctx, epochTime)
	defer cancel()
	err := t.refresh(short, tenant, t.fresh/2, true)
	if err != nil && short.Err() != nil { // whatever the request would have changed, it has not
		err = fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
	}
	if err != nil {
		return 0, fmt.Errorf("read tenant epoch: %w", err)
	}
	epoch, _ = t.look(tenant)
	return epoch, nil
}

// current reads the epoch after the call began: what is made by it outlives every
// change that was acknowledged before.
func (t *Tenants) current(ctx context.Context, tenant string) (int64, error) {
	if t == nil {
		return 0, nil
	}
	began := t.now()
	epoch, err := t.store.TenantEpoch(ctx, tenant)
	if err != nil {
		return 0, fmt.Errorf("read tenant epoch: %w", err)
	}
	t.learn(tenant, epoch, began)
	return epoch, nil
}

// orStale is epoch, or where that cannot be read in time one that is stale and still of use.
func (t *Tenants) orStale(ctx context.Context, tenant string) (epoch int64, stale bool, err error) {
	if t == nil {
		return 0, false, nil
	}
	if _, age := t.look(tenant); age < t.fresh || age >= t.fresh+t.grace {
		epoch, err = t.epoch(ctx, tenant)
		return epoch, false, err
	}
	short, cancel := context.WithTimeout(ctx, t.patience())
	defer cancel()
	err = t.refresh(short, tenant, t.fresh/2, true)
	if ctx.Err() != nil {
		return 0, false, ctx.Err()
	}
	epoch, _ = t.look(tenant)
	return epoch, err != nil, nil
}

// patience is how long a request waits for an epoch that it can do without.
func (t *Tenants) patience() time.Duration { return t.fresh / 20 }

// look says what is known and how old that is.
func (t *Tenants) look(tenant string) (epoch int64, age time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, now := t.entry(tenant), t.now()
	e.used = now
	if e.read.IsZero() {
		return 0, t.fresh + t.grace
	}
	return e.epoch, now.Sub(e.read)
}

func (t *Tenants) entry(tenant string) *tenantEpoch {
	e := t.known[tenant]
	if e == nil {
		e = &tenantEpoch{used: t.now()}
		t.known[tenant] = e
	}
	return e
}

// refresh reads the epoch if it is older than that. Of those who want to one reads;
// the others wait for it, and share its failure, or go on.
func (t *Tenants) refresh(ctx context.Context, tenant string, older time.Duration, wait bool) error {
	for {
		e, read, mine := t.begin(tenant, older)
		switch {
		case read == nil:
			return nil
		case mine:
			return t.read(ctx, tenant, e, read)
		case !wait:
			return nil
		}
		select {
		case <-read.done:
			if read.err != nil && !read.left {
				return read.err
			}
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", keytype.ErrUnavailable, ctx.Err())
		}
	}
}

// begin joins the read under way, or starts one that is the caller's to do. There is
// none where what is known is young.
func (t *Tenants) begin(tenant string, older time.Duration) (e *tenantEpoch, read *epochRead, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e = t.entry(tenant)
	switch {
	case !e.read.IsZero() && t.now().Sub(e.read) < older:
		return e, nil, false
	case e.reading != nil:
		return e, e.reading, false
	}
	e.reading = &epochRead{done: make(chan struct{})}
	return e, e.reading, true
}

func (t *Tenants) read(ctx context.Context, tenant string, e *tenantEpoch, read *epochRead) error {
	began := t.now()
	epoch, err := t.store.TenantEpoch(ctx, tenant)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		e.epoch, e.read = max(e.epoch, epoch), began
	}
	read.err, read.left = err, ctx.Err() != nil
	e.reading = nil
	close(read.done)
	return err
}

// learn keeps an epoch that was read by a read that began then. One that this node
// raised, at the zero time, makes nothing fresh.
func (t *Tenants) learn(tenant string, epoch int64, read time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(tenant)
	e.epoch = max(e.epoch, epoch)
	if read.After(e.read) {
		e.read = read
	}
}
