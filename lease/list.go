package lease

import (
	"context"

	"github.com/coordsvc/coordsvc/keytype"
)

// MaxPage is how many leases a page of a list can hold.
const MaxPage = 100

// A Page is a part of an owner's leases, in a fixed order.
type Page struct {
	Leases []Lease
	Next   string // the cursor of the next page, empty on the last one
}

// An Owned is one lease of a list as it is stored.
type Owned struct {
	Resource string
	State    State
}

// A ListOp is what the manager hands its store.
type ListOp struct {
	Owner string
	After string // only resources behind this one in the store's order; empty = from the first
	Limit int    // how many to look at, at most
}

// List shows the leases that the owner holds, limit (1 to MaxPage, 0 = MaxPage) at a
// time, after the cursor of the page before. What was granted or released just now may
// not show yet; what shows is as it is stored. A page that is not the last may hold
// fewer, also none.
func (m *Manager) List(ctx context.Context, tenant, owner, cursor string, limit int) (Page, error) {
	if err := checkResource(tenant, "-"); err != nil {
		return Page{}, err
	}
	if err := keytype.CheckID("owner", owner); err != nil {
		return Page{}, err
	}
	if limit == 0 {
		limit = MaxPage
	}
	if err := keytype.CheckRange("limit", int64(limit), 1, MaxPage); err != nil {
		return Page{}, err
	}
	after, err := m.openCursor(tenant, owner, cursor)
	if err != nil {
		return Page{}, err
	}
	owned, next, err := m.store.List(ctx, tenant, ListOp{Owner: owner, After: after, Limit: limit})
	if err != nil {
		return Page{}, err
	}
	page := Page{Next: m.sealCursor(tenant, owner, next)}
	now := m.clock()
	for _, o := range owned {
		if o.State.Owner == owner && o.State.live(now) {
			page.Leases = append(page.Leases, o.State.lease(o.Resource, now))
		}
	}
	return page, nil
}

// listPurpose keeps other lists' cursors, and those of other owners, apart from these.
func listPurpose(owner string) string { return "leases of the owner " + owner }

// A cursor is the last resource that was looked at.
func (m *Manager) sealCursor(tenant, owner, resource string) string {
	if resource == "" || m.sealer == nil {
		return resource
	}
	return m.sealer.Seal(listPurpose(owner), tenant, []byte(resource))
}

func (m *Manager) openCursor(tenant, owner, cursor string) (resource string, err error) {
	if cursor == "" {
		return "", nil
	}
	if m.sealer == nil {
		return cursor, keytype.CheckID("cursor", cursor)
	}
	raw, err := m.sealer.Open(listPurpose(owner), tenant, cursor)
	if err != nil {
		return "", &keytype.ValueError{Field: "cursor", Reason: "is not one that this list answered with"}
	}
	return string(raw), nil
}
