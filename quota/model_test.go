package quota_test

import (
	"context"
	"testing"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/quota"
	"github.com/coordsvc/coordsvc/quota/quotatest"
)

// The store in memory and the bare transitions answer as a ledger does that keeps
// every entry and adds them up.
func TestAgainstALedger(t *testing.T) {
	quotatest.Agree(t, map[string]quota.Store{
		"memory":      quota.NewLocal(kv.NewMemory(kv.MemoryOptions{})),
		"transitions": transitions{},
	})
}

// transitions runs the bare transitions on maps, and forgets nothing.
type transitions map[quota.ID]*everything

type everything struct {
	setting      quota.Setting
	accounts     map[string]quota.Account
	receipts     map[string]quota.Receipt
	reservations map[string]quota.Reservation
}

func (m transitions) of(id quota.ID) *everything {
	if m[id] == nil {
		m[id] = &everything{quota.Setting{}, map[string]quota.Account{}, map[string]quota.Receipt{}, map[string]quota.Reservation{}}
	}
	return m[id]
}

func (e *everything) state(d quota.Definition, now time.Time) quota.State {
	f, err := d.Frame(now)
	if err != nil {
		panic(err)
	}
	return quota.State{Setting: e.setting, Frame: f, Account: e.accounts[f.ID]}
}

func (m transitions) Set(_ context.Context, id quota.ID, d quota.Definition, now time.Time) (quota.Outcome, error) {
	e := m.of(id)
	next, out := e.state(d, now).Set(d)
	e.setting, e.accounts[next.Account.ID] = next.Setting, next.Account
	return out, nil
}

func (m transitions) Get(_ context.Context, id quota.ID, now time.Time) (quota.Outcome, error) {
	e := m.of(id)
	if e.setting.Revision == 0 {
		return quota.State{}.Get(), nil
	}
	return e.state(e.setting.Definition, now).Get(), nil
}

func (m transitions) Use(_ context.Context, id quota.ID, req quota.Use) (quota.Outcome, error) {
	e := m.of(id)
	if e.setting.Revision == 0 {
		_, out := quota.State{}.Use(req)
		return out, nil
	}
	s := e.state(e.setting.Definition, req.Now)
	key := s.Frame.ID + " " + req.RequestID
	s.Receipt = e.receipts[key]
	next, out := s.Use(req)
	if next != s {
		e.accounts[s.Frame.ID], e.receipts[key], e.reservations[next.Reservation.ID] = next.Account, next.Receipt, next.Reservation
	}
	return out, nil
}

func (m transitions) Settle(_ context.Context, id quota.ID, req quota.Settle) (quota.Outcome, error) {
	e := m.of(id)
	r := e.reservations[req.Reservation]
	next, out := quota.State{Reservation: r, Account: e.accounts[r.Frame]}.Settle(req)
	if next.Reservation != r {
		e.reservations[r.ID], e.accounts[r.Frame] = next.Reservation, next.Account
	}
	return out, nil
}

func (m transitions) Due(context.Context, time.Time, int) ([]quota.Due, error) { return nil, nil }
