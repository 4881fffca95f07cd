package lease

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/keytype"
)

// MaxSet is how many resources one request may concern.
const MaxSet = 100

// A Decision is what a Store's Together asks of each resource, by its place in the
// list: a pure function as the methods of [State] are.
type Decision func(i int, fence fencing.State, s State) (State, Outcome)

// A HeldLease names one grant of a set.
type HeldLease struct {
	Resource string
	Holder
}

// AcquireSet grants all the resources, 1 to MaxSet different ones, or none. It refuses
// as Acquire does, with the *HeldError of the resource that is free last; the same
// owner and request id get the same grants again. Where they were granted one of the
// resources before in another set, or by itself, that is ErrMismatch. The request's Wait
// must be 0.
func (m *Manager) AcquireSet(ctx context.Context, tenant string, resources []string, req AcquireRequest) ([]Grant, error) {
	if req.Wait != 0 {
		return nil, &keytype.ValueError{Field: "wait_ms", Reason: "is not offered for a set"}
	}
	if err := checkSet(tenant, resources); err != nil {
		return nil, err
	}
	data, err := req.check(tenant, resources[0])
	if err != nil {
		return nil, err
	}
	now, noSteal, ids := m.clock(), m.skewed(), make([]string, len(resources))
	for i := range ids {
		ids[i] = "lse_" + rand.Text()
	}
	set := setOf(resources)
	repeated := false // what the first resource is, all have to be
	outs, err := m.store.Together(ctx, tenant, resources, func(i int, fence fencing.State, s State) (State, Outcome) {
		member := Acquire{
			Owner: req.Owner, RequestID: req.RequestID, ID: ids[i],
			Now: now, TTL: wholeMillis(req.TTL), MaxHold: wholeMillis(req.maxHold()), Guard: m.guard,
			NotAfter: req.NotAfter, Data: data, NoSteal: noSteal, Set: set,
		}
		next, out := s.Acquire(fence, member)
		if i == 0 {
			repeated = s.repeats(member)
		} else if s.repeats(member) != repeated && out.Verdict != Mismatch { // a part of the set has ended
			return s, Outcome{RequestExpired, s}
		}
		return next, out
	})
	return m.grants(resources, outs, err, now, req.TTL)
}

// setOf stands for the resources in whatever order.
func setOf(resources []string) string {
	h := sha256.New()
	for _, r := range slices.Sorted(slices.Values(resources)) {
		fmt.Fprintf(h, "%d:%s", len(r), r)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// RenewSet renews all the grants as Renew does, or none.
func (m *Manager) RenewSet(ctx context.Context, tenant string, leases []HeldLease, ttl time.Duration) ([]Grant, error) {
	resources, err := checkHeld(tenant, leases)
	if err != nil {
		return nil, err
	}
	if err := checkTTL(ttl); err != nil {
		return nil, err
	}
	now := m.clock()
	outs, err := m.store.Together(ctx, tenant, resources, func(i int, _ fencing.State, s State) (State, Outcome) {
		return s.Renew(Renew{Holder: leases[i].Holder, Now: now, TTL: wholeMillis(ttl)})
	})
	return m.grants(resources, outs, err, now, ttl)
}

// ReleaseSet ends all the grants as Release does, or none.
func (m *Manager) ReleaseSet(ctx context.Context, tenant string, leases []HeldLease) error {
	resources, err := checkHeld(tenant, leases)
	if err != nil {
		return err
	}
	outs, err := m.store.Together(ctx, tenant, resources, func(i int, _ fencing.State, s State) (State, Outcome) {
		return s.Release(leases[i].Holder)
	})
	if err != nil {
		return err
	}
	if err := m.refusal(refused(outs), m.clock()); err != nil {
		return err
	}
	for _, resource := range resources {
		m.lines.wake(place{tenant, resource})
	}
	return nil
}

func (m *Manager) grants(resources []string, outs []Outcome, err error, now time.Time, ttl time.Duration) ([]Grant, error) {
	if err != nil {
		return nil, err
	}
	if err := m.refusal(refused(outs), now); err != nil {
		return nil, err
	}
	all := make([]Grant, len(outs))
	for i, out := range outs {
		if all[i], err = m.grant(resources[i], out, nil, now, ttl); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// refused is the outcome that decides over all: any refusal, of several that somebody
// holds the one that is free last.
func refused(outs []Outcome) Outcome {
	decisive := Outcome{Verdict: Done}
	for _, out := range outs {
		switch {
		case out.Verdict == Done:
		case decisive.Verdict == Done, out.Verdict == Held && decisive.Verdict == Held && out.State.ExpiresAt.After(decisive.State.ExpiresAt):
			decisive = out
		case decisive.Verdict == Held && out.Verdict != Held: // waiting would be in vain
			decisive = out
		}
	}
	return decisive
}

func checkHeld(tenant string, leases []HeldLease) (resources []string, err error) {
	for _, l := range leases {
		resources = append(resources, l.Resource)
	}
	if err := checkSet(tenant, resources); err != nil {
		return nil, setField("leases", err)
	}
	for _, l := range leases {
		if err := checkHolder(tenant, l.Resource, l.Holder); err != nil {
			return nil, setField("leases", err)
		}
	}
	return resources, nil
}

// setField names the list where a member is wrong.
func setField(list string, err error) error {
	if e, ok := errors.AsType[*keytype.ValueError](err); ok && e.Field != "tenant" {
		return &keytype.ValueError{Field: list, Reason: "has a member whose " + e.Error()}
	}
	return err
}

func checkSet(tenant string, resources []string) error {
	if err := keytype.CheckID("tenant", tenant); err != nil {
		return err
	}
	if n := len(resources); n < 1 || n > MaxSet {
		return &keytype.ValueError{Field: "resources", Reason: fmt.Sprintf("must name 1 to %d", MaxSet)}
	}
	seen := map[string]bool{}
	for _, r := range resources {
		if err := keytype.CheckID("resource", r); err != nil {
			return setField("resources", err)
		}
		if seen[r] {
			return &keytype.ValueError{Field: "resources", Reason: "names one twice"}
		}
		seen[r] = true
	}
	return nil
}
