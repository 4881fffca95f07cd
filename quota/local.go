package quota

import (
	"context"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// Local is the Store in one process: this package's transitions, each in one transaction.
type Local struct{ kv kv.Store }

// NewLocal makes a Store over the items of one memory or file store.
func NewLocal(store kv.Store) *Local { return &Local{kv: store} }

// Set implements Store.
func (l *Local) Set(ctx context.Context, id ID, d Definition, now time.Time) (out Outcome, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		p := place{tx: tx, id: id}
		s, err := p.loadUnder(d, now)
		if err != nil {
			return err
		}
		next, decided := s.Set(d)
		out = decided
		return p.save(s, next)
	})
	return out, fault("set", id, err)
}

// Get implements Store.
func (l *Local) Get(ctx context.Context, id ID, now time.Time) (out Outcome, err error) {
	err = l.kv.View(ctx, func(tx kv.Tx) error {
		s, err := place{tx: tx, id: id}.load(now)
		out = s.Get()
		return err
	})
	return out, fault("get", id, err)
}

// Use implements Store.
func (l *Local) Use(ctx context.Context, id ID, req Use) (out Outcome, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		p := place{tx: tx, id: id, requestID: req.RequestID}
		s, err := p.load(req.Now)
		if err != nil {
			return err
		}
		next, decided := s.Use(req)
		out = decided
		return p.save(s, next)
	})
	return out, fault("use", id, err)
}

// Settle implements Store.
func (l *Local) Settle(ctx context.Context, id ID, req Settle) (out Outcome, err error) {
	err = l.kv.Update(ctx, func(tx kv.Tx) error {
		p := place{tx: tx, id: id}
		s, err := p.loadReserved(req.Reservation)
		if err != nil {
			return err
		}
		next, decided := s.Settle(req)
		out = decided
		return p.save(s, next)
	})
	return out, fault("settle", id, err)
}

// Due implements Store. Its index has one entry for each active reservation, in
// the order of their expiry.
func (l *Local) Due(ctx context.Context, cutoff time.Time, limit int) (due []Due, err error) {
	err = l.kv.View(ctx, func(tx kv.Tx) error {
		tx.Scan(keytype.QuotaDue.Bucket(), "", "", func(key string, _ []byte) bool {
			parts, ok := keytype.QuotaDue.Split(key)
			if !ok || len(due) >= limit || parts[0] > dueAt(cutoff) {
				return false
			}
			due = append(due, Due{ID{parts[1], parts[2], parts[3]}, parts[4]})
			return true
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scan the index: %w", err)
	}
	return due, nil
}

// dueAt orders instants as texts of one length.
func dueAt(t time.Time) string { return fmt.Sprintf("%015d", t.UnixMilli()) }

// A place is where one step reads and writes.
type place struct {
	tx        kv.Tx
	id        ID
	requestID string // empty where the step has none
}

// load reads what a step in the current window concerns.
func (p place) load(now time.Time) (State, error) {
	setting, _, err := kv.Load[Setting](p.tx, keytype.Quota.Bucket(), p.accountKey(""))
	if err != nil || setting.Revision == 0 {
		return State{}, err
	}
	return p.loadUnder(setting.Definition, now)
}

// loadUnder is load with the window that another definition has.
func (p place) loadUnder(d Definition, now time.Time) (s State, err error) {
	if s.Setting, _, err = kv.Load[Setting](p.tx, keytype.Quota.Bucket(), p.accountKey("")); err != nil {
		return s, err
	}
	if s.Frame, err = d.Frame(now); err != nil {
		return s, err
	}
	if s.Account, _, err = kv.Load[Account](p.tx, keytype.Quota.Bucket(), p.accountKey(s.Frame.ID)); err != nil || p.requestID == "" {
		return s, err
	}
	s.Receipt, _, err = kv.Load[Receipt](p.tx, keytype.QuotaReceipt.Bucket(), p.receiptKey(s.Frame.ID))
	return s, err
}

// loadReserved reads a reservation and the account of its window.
func (p place) loadReserved(reservation string) (s State, err error) {
	s.Reservation, _, err = kv.Load[Reservation](p.tx, keytype.QuotaReservation.Bucket(), p.reservationKey(reservation))
	if err != nil || s.Reservation.Phase == 0 {
		return s, err
	}
	s.Account, _, err = kv.Load[Account](p.tx, keytype.Quota.Bucket(), p.accountKey(s.Reservation.Frame))
	return s, err
}

// save writes what the step changed. An active reservation does not expire as an
// item: its units would go with it.
func (p place) save(old, next State) error {
	if next.Setting != old.Setting {
		if err := kv.Save(p.tx, keytype.Quota.Bucket(), p.accountKey(""), next.Setting, time.Time{}); err != nil {
			return err
		}
	}
	if a := next.Account; a != old.Account {
		if err := kv.Save(p.tx, keytype.Quota.Bucket(), p.accountKey(a.ID), a, a.Gone()); err != nil {
			return err
		}
	}
	if r := next.Receipt; r != old.Receipt {
		if err := kv.Save(p.tx, keytype.QuotaReceipt.Bucket(), p.receiptKey(next.Account.ID), r, r.Kept); err != nil {
			return err
		}
	}
	if r := next.Reservation; r != old.Reservation {
		p.index(r)
		return kv.Save(p.tx, keytype.QuotaReservation.Bucket(), p.reservationKey(r.ID), r, r.Kept)
	}
	return nil
}

func (p place) index(r Reservation) {
	key := keytype.QuotaDue.Key(dueAt(r.Expires), p.id.Tenant, p.id.Name, p.id.Subject, r.ID)
	if r.Phase == Active {
		p.tx.Put(keytype.QuotaDue.Bucket(), key, []byte{'1'}, time.Time{}) // the value is the format number alone
	} else {
		p.tx.Delete(keytype.QuotaDue.Bucket(), key)
	}
}

// accountKey is the key of a window's account, and with no window the setting's.
func (p place) accountKey(frame string) string {
	return keytype.Quota.Key(p.id.Tenant, p.id.Name, p.id.Subject, frame)
}

func (p place) receiptKey(frame string) string {
	return keytype.QuotaReceipt.Key(p.id.Tenant, p.id.Name, p.id.Subject, frame, p.requestID)
}

func (p place) reservationKey(reservation string) string {
	return keytype.QuotaReservation.Key(p.id.Tenant, p.id.Name, p.id.Subject, reservation)
}

func fault(op string, id ID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q of %q: %w", op, id.Name, id.Subject, err)
}
