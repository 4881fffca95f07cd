package checker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// resource is the one of a history of leases.
const resource = "r"

// A node is a process with a clock of its own.
type node struct {
	h      *history
	stores stores
	leases leases
	sets   sets // nil where there are none
	fences fences
	offset time.Duration // of its clock
	steady bool          // nobody sets its clock
}

// leases, sets and fences are what the clients of a node use of it.
type (
	sets interface {
		AcquireSet(ctx context.Context, tenant string, resources []string, req lease.AcquireRequest) ([]lease.Grant, error)
		RenewSet(ctx context.Context, tenant string, held []lease.HeldLease, ttl time.Duration) ([]lease.Grant, error)
		ReleaseSet(ctx context.Context, tenant string, held []lease.HeldLease) error
	}
	leases interface {
		Acquire(ctx context.Context, tenant, resource string, req lease.AcquireRequest) (lease.Grant, error)
		Renew(ctx context.Context, tenant, resource string, h lease.Holder, ttl time.Duration) (lease.Grant, error)
		Release(ctx context.Context, tenant, resource string, h lease.Holder) error
		ForceRelease(ctx context.Context, tenant, resource string, token fencing.Token, requestID string) (fencing.Token, error)
		Get(ctx context.Context, tenant, resource string) (lease.Lease, error)
	}
	fences interface {
		Admit(ctx context.Context, tenant, resource string, at fencing.Position) (fencing.Position, error)
		Mark(ctx context.Context, tenant, resource string) (fencing.Position, error)
		Write(ctx context.Context, tenant, resource, key string, req fencing.WriteRequest) (fencing.Record, error)
		Read(ctx context.Context, tenant, resource, key string) (fencing.Record, error)
	}
)

func (h *history) newNode(d data) *node {
	n := &node{h: h, stores: d.node()}
	n.setClock()
	options := lease.Options{Guard: h.guard(), Now: n.now}
	m := lease.New(recordedLeases{n.stores.leases, h}, options)
	n.leases, n.sets = m, m
	n.fences = fencing.New(recordedFences{n.stores.fences, h})
	return n
}

func (h *history) guard() time.Duration {
	if h.mutant.NoGuard {
		return 0
	}
	return guard
}

func (n *node) now() time.Time { return epoch.Add(n.h.now + n.offset) }

// setClock sets the node's clock, as NTP or an operator does: within the guard of all others, or not.
func (n *node) setClock() {
	n.offset = n.h.between(-guard/2, guard/2)
	if n.h.beyond {
		n.offset = n.h.between(-5*guard, 5*guard)
	}
}

// A leaseClient works on the resource as well as it can, and not always well: it
// pauses, forgets, repeats itself, and uses what is not its own any more.
type leaseClient struct {
	*node
	name string
	seen *sightings

	held  lease.Grant   // the latest grant that it got, zero = none
	old   []lease.Grant // that it had before
	asked lease.AcquireRequest
	asSet bool // asked is for a set
	again bool // asked is to be repeated: nothing is known of it
	seq   int64
	calls int
}

func (c *leaseClient) work(ctx context.Context, t *task) {
	ctx = t.context(ctx)
	for c.h.left > 0 {
		c.h.left--
		if !c.steady && c.h.chance(0.05) {
			c.setClock()
		}
		if c.held.ID == "" {
			c.idle(ctx)
		} else {
			c.busy(ctx)
		}
		t.sleep(c.h.between(0, 40*time.Millisecond))
		if c.held.ID == "" {
			t.sleep(c.h.between(0, guard))
		}
		if c.h.chance(0.12) { // a pause that its lease may not survive
			c.h.note("pauses")
			t.sleep(c.h.between(0, 6*guard))
		}
	}
}

// idle is what it does without a grant.
func (c *leaseClient) idle(ctx context.Context) {
	switch d := c.h.rng.Float64(); {
	case d < 0.45 || len(c.old) == 0:
		c.acquire(ctx)
	case d < 0.53:
		c.look(ctx)
	case d < 0.6:
		c.acquireAgain(ctx)
	default:
		g := c.old[c.h.rng.IntN(len(c.old))]
		c.use(ctx, g)
	}
}

func (c *leaseClient) busy(ctx context.Context) {
	switch d := c.h.rng.Float64(); {
	case d < 0.06:
		c.look(ctx)
	case d < 0.10:
		c.force(ctx)
	case d < 0.16:
		c.drop() // it crashed, or forgot
	case d < 0.20:
		c.acquireAgain(ctx)
	default:
		c.use(ctx, c.held)
	}
}

func (c *leaseClient) drop() {
	c.old = append(c.old, c.held)
	c.held = lease.Grant{}
}

func (c *leaseClient) acquire(ctx context.Context) {
	if !c.again || c.h.chance(0.3) {
		c.calls++
		c.asked = lease.AcquireRequest{Owner: c.name, TTL: c.h.between(100*time.Millisecond, 3*guard)}
		if c.h.chance(0.7) {
			c.asked.RequestID = fmt.Sprintf("%s-%d", c.name, c.calls)
		}
		if c.h.chance(0.15) {
			c.asked.NotAfter = c.now().Add(c.h.between(0, guard))
		}
		if c.h.chance(0.2) {
			c.asked.MaxHold = c.asked.TTL + c.h.between(0, 2*guard)
		}
		c.asSet, c.seq = c.bySet(), 0
	}
	c.acquireAgain(ctx)
}

// bySet: the resource is asked for, renewed or released as a set of one, in a transaction.
func (c *leaseClient) bySet() bool { return c.sets != nil && c.h.chance(0.15) }

// only is the one of a set of one.
func only(grants []lease.Grant, err error) (lease.Grant, error) {
	if err != nil {
		return lease.Grant{}, err
	}
	return grants[0], nil
}

func setOf(g lease.Grant) []lease.HeldLease {
	return []lease.HeldLease{{Resource: resource, Holder: holder(g)}}
}

// acquireAgain sends the request that it sent last.
func (c *leaseClient) acquireAgain(ctx context.Context) {
	s := c.seen.begin("acquire")
	acquire := func() (lease.Grant, error) { return c.leases.Acquire(ctx, c.h.tenant, resource, c.asked) }
	if c.asSet {
		acquire = func() (lease.Grant, error) {
			return only(c.sets.AcquireSet(ctx, c.h.tenant, []string{resource}, c.asked))
		}
	}
	g, err := acquire()
	c.again = errors.Is(err, keytype.ErrOutcomeUnknown) || errors.Is(err, keytype.ErrUnavailable)
	if err != nil {
		return
	}
	if c.held.ID != "" && c.held.ID != g.ID {
		c.drop()
	}
	c.held = g
	c.seen.granted(s, g, c.asked.RequestID)
}

// look reads.
func (c *leaseClient) look(ctx context.Context) {
	c.h.note("read")
	switch c.h.rng.IntN(3) {
	case 0:
		_, _ = c.leases.Get(ctx, c.h.tenant, resource)
	case 1:
		_, _ = c.fences.Mark(ctx, c.h.tenant, resource)
	default:
		_, _ = c.fences.Read(ctx, c.h.tenant, resource, keys[c.h.rng.IntN(len(keys))])
	}
}

// use does something under the grant, which may have ended.
func (c *leaseClient) use(ctx context.Context, g lease.Grant) {
	var err error
	switch d := c.h.rng.Float64(); {
	case d < 0.25:
		err = c.renew(ctx, g)
	case d < 0.45:
		err = c.admit(ctx, g)
	case d < 0.85:
		err = c.write(ctx, g)
	default:
		err = c.release(ctx, g)
	}
	stale := errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrExpired)
	if _, refused := errors.AsType[*fencing.StaleError](err); (refused || stale) && g.ID == c.held.ID && c.h.chance(0.7) {
		c.drop()
	}
}

func (c *leaseClient) renew(ctx context.Context, g lease.Grant) error {
	s := c.seen.begin("renew")
	ttl := c.h.between(100*time.Millisecond, 3*guard)
	renew := func() (lease.Grant, error) { return c.leases.Renew(ctx, c.h.tenant, resource, holder(g), ttl) }
	if c.bySet() {
		renew = func() (lease.Grant, error) { return only(c.sets.RenewSet(ctx, c.h.tenant, setOf(g), ttl)) }
	}
	renewed, err := renew()
	if err == nil {
		c.seen.renewed(s, renewed)
	}
	return err
}

func (c *leaseClient) release(ctx context.Context, g lease.Grant) error {
	c.h.note("release")
	c.seen.ended(g.Token)
	release := func() error { return c.leases.Release(ctx, c.h.tenant, resource, holder(g)) }
	if c.bySet() {
		release = func() error { return c.sets.ReleaseSet(ctx, c.h.tenant, setOf(g)) }
	}
	err := release()
	if g.ID == c.held.ID && !errors.Is(err, keytype.ErrUnavailable) && !errors.Is(err, keytype.ErrOutcomeUnknown) {
		c.drop()
	}
	return err
}

// position names a sequence half of the time: mostly the next one, at times the last or an
// older one. In real time it always does: a write without one, delivered twice, is two.
func (c *leaseClient) position(g lease.Grant) fencing.Position {
	if !c.h.real && c.h.chance(0.5) {
		return fencing.Position{Token: g.Token}
	}
	d := c.h.rng.Float64()
	if c.seq == 0 || d < 0.6 {
		c.seq++
	}
	if d > 0.8 {
		return fencing.Position{Token: g.Token, Sequence: 1 + c.h.rng.Int64N(c.seq)}
	}
	return fencing.Position{Token: g.Token, Sequence: c.seq}
}

func (c *leaseClient) admit(ctx context.Context, g lease.Grant) error {
	at := c.position(g)
	s := c.seen.begin("admit")
	mark, err := c.fences.Admit(ctx, c.h.tenant, resource, at)
	if err == nil {
		c.seen.admitted(s, at, mark)
	}
	return err
}

// write writes a value of its own to the record of mode lease or of mode high water, at
// times the same one again.
func (c *leaseClient) write(ctx context.Context, g lease.Grant) error {
	at := c.position(g)
	c.calls++
	value := fmt.Sprintf(`"%s-%d"`, c.name, c.calls)
	if at.Sequence > 0 {
		value = fmt.Sprintf(`"%s-%d/%d"`, c.name, at.Token, at.Sequence)
	}
	key, req := keys[0], fencing.WriteRequest{Position: at, Value: []byte(value), Mode: fencing.Leased, LeaseID: g.ID}
	if c.h.chance(0.4) {
		key, req.Mode, req.LeaseID = keys[1], fencing.HighWater, ""
	}
	s := c.seen.beginWrite(key, req)
	r, err := c.fences.Write(ctx, c.h.tenant, resource, key, req)
	if err == nil {
		c.seen.wrote(s, key, req, r)
	}
	return err
}

// force ends the latest grant, whoever has it.
func (c *leaseClient) force(ctx context.Context) {
	l, err := c.leases.Get(ctx, c.h.tenant, resource)
	if err != nil {
		return
	}
	c.calls++
	id := fmt.Sprintf("%s-force-%d", c.name, c.calls)
	c.seen.ended(l.Token)
	for range 2 { // again where nothing is known of the first
		s := c.seen.begin("force")
		token, err := c.leases.ForceRelease(ctx, c.h.tenant, resource, l.Token, id)
		if err == nil {
			c.seen.forced(s, l.Token, token)
		}
		if !errors.Is(err, keytype.ErrOutcomeUnknown) {
			return
		}
	}
}

func holder(g lease.Grant) lease.Holder { return lease.Holder{ID: g.ID, Token: g.Token} }

// clients is how many work at once, on two nodes.
const clients = 5

// Leases runs a history of about so many calls on one resource. Of some, the items are
// lost on the way, as by a restore, and the floor is raised.
func Leases(ctx context.Context, ground Ground, seed uint64, calls int, mutant Mutant) Result {
	h := newHistory("leases", seed, mutant)
	h.beyond = h.chance(0.25)
	losing := h.chance(0.08)
	d, err := ground.data(h, losing)
	if err != nil {
		h.violate("harness", "%v", err)
		return h.result()
	}
	defer d.close()
	seen := newSightings(h)
	nodes := []*node{h.newNode(d), h.newNode(d)}
	var team []*leaseClient
	for i := range clients {
		team = append(team, &leaseClient{node: nodes[i%2], name: string(rune('a' + i)), seen: seen})
	}
	phase := func(calls int) {
		h.left = calls
		for _, c := range team {
			h.start(h.between(0, 50*time.Millisecond), func(t *task) { c.work(ctx, t) })
		}
		h.run()
	}
	if losing {
		phase(calls / 2)
		h.loseAndRaise(ctx, d, nodes, seen)
		calls /= 2
	}
	phase(calls)
	h.linearize(register{})
	seen.judge()
	return h.result()
}

// insist tries until no fault comes between.
func insist(try func() error) error {
	err := try()
	for n := 0; fault(err) && n < 100; n++ {
		err = try()
	}
	return err
}

// loseAndRaise deletes the lease, and raises the floor above all that was granted.
func (h *history) loseAndRaise(ctx context.Context, d data, nodes []*node, seen *sightings) {
	const floor = 1000
	h.note("losses of items, floor raised")
	begun := h.tick()
	err := d.lose(ctx, h.tenant, resource)
	err = errors.Join(err, insist(func() error {
		_, err := nodes[0].stores.leases.RaiseFloor(ctx, floor)
		return err
	}))
	for _, n := range nodes {
		err = errors.Join(err, insist(func() error { return n.stores.refresh(ctx) }))
	}
	if err != nil {
		h.violate("harness", "lose items and raise the floor: %v", err)
	}
	seen.lost()
	h.calls = append(h.calls, &call{name: "loss", begun: begun, ended: h.tick(), step: func(state any) (any, any) {
		return register{fence: fencing.State{Floor: floor}, records: state.(register).records}, nil
	}})
}
