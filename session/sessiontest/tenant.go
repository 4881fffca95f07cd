package sessiontest

import (
	"errors"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/session"
)

// LogoutTenant ends every session of one tenant, on this node at once and on another within F.
func LogoutTenant(t *testing.T, open Open) {
	w := start(t, open)
	const fresh = 4 * time.Second // shorter than a session may be idle
	node := func() *session.Manager {
		tenants := session.NewTenants(w.store, session.TenantsOptions{Fresh: fresh, Now: w.clock})
		return session.New(w.store, session.Options{RouteKey: routeKey, Now: w.clock, Tenants: tenants})
	}
	other, there := node(), newTenant()
	w.m = node()
	token, s := w.login("ann")
	theirs, _, err := w.m.Create(t.Context(), there, session.CreateRequest{UserID: "ann"})
	w.must("create in another tenant", err)
	w.want("before", token, s, "")
	v, err := other.Verify(t.Context(), w.tenant, token, session.VerifyRequest{})
	if err != nil || !v.Active {
		t.Fatalf("on the other node before: %+v %v", v, err)
	}
	for round := range 2 {
		p, err := w.m.LogoutTenant(t.Context(), w.tenant)
		w.must("log the tenant out", err)
		if p.Propagated || !p.EffectiveBy.Equal(w.instant().Add(fresh)) {
			t.Errorf("effective %+v at %v", p, w.instant())
		}
		w.want("here at once", token, s, session.Epoch)
		w.cannot("the tenant's", token)
		for why, err := range map[string]error{
			"read data":  second(w.m.Data(t.Context(), w.tenant, s.Handle)),
			"write data": second(w.m.SetData(t.Context(), w.tenant, s.Handle, 0, []byte(`1`))),
		} {
			if !errors.Is(err, session.ErrNotFound) {
				t.Errorf("%s: %v", why, err)
			}
		}
		if v, err := w.m.Verify(t.Context(), there, theirs.Reveal(), session.VerifyRequest{}); err != nil || !v.Active {
			t.Errorf("another tenant's: %+v %v", v, err)
		}
		demanding := session.VerifyRequest{MinAAL: 3, MaxAuthAge: time.Millisecond}
		if v, err := w.m.Verify(t.Context(), w.tenant, token, demanding); err != nil || v.Reason != session.Epoch {
			t.Errorf("whatever is demanded of it: %+v %v", v, err)
		}
		if round == 0 { // the other node knows an older one
			late, sl, err := other.Create(t.Context(), w.tenant, session.CreateRequest{UserID: "bob", AbsoluteTTL: absolute, IdleTTL: idleTime})
			w.must("create on the other node", err)
			w.want("made after it by a node that did not know", late.Reveal(), sl, "")
		}
		w.pass(fresh / 2)
		if v, err := other.Verify(t.Context(), w.tenant, token, session.VerifyRequest{}); err != nil || v.Reason != session.Epoch {
			t.Errorf("on the other node half of F later: %+v %v", v, err)
		}
		if _, _, err := w.create(session.CreateRequest{UserID: "ann", MaxSessions: 1}); err != nil {
			t.Errorf("the dead count against the limit: %v", err)
		}
		token, s = w.login("ann")
		w.want("after", token, s, "")
	}
}
