package audit

import (
	"context"
	"errors"
	"fmt"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// errIDTaken is met when the random source repeats itself.
var errIDTaken = fmt.Errorf("audit: another event has the id: %w", keytype.ErrUnavailable)

// Local is a Store in the embedded store. A tenant's events lie there newest
// first, under ids counted down, since the embedded store scans upwards only.
type Local struct{ kv kv.Store }

// NewLocal makes a store of events in the embedded store.
func NewLocal(store kv.Store) *Local { return &Local{kv: store} }

// localEvent is an event as it is stored. Its key holds the tenant and the id, counted down.
type localEvent struct {
	Actor     string  `json:"actor"`
	Action    Action  `json:"action"`
	User      string  `json:"user,omitempty"`
	Subject   string  `json:"subject,omitempty"`
	Reason    string  `json:"reason,omitempty"`
	RequestID string  `json:"request_id,omitempty"`
	Outcome   Outcome `json:"outcome"`
	Repeats   int     `json:"repeats,omitempty"`
}

// Append implements Store.
func (l *Local) Append(ctx context.Context, e Event) error {
	item := localEvent{e.Actor, e.Action, e.User, e.Subject, e.Reason, e.RequestID, e.Outcome, e.Repeats}
	key := localKey(e.Tenant, e.ID)
	err := l.kv.Update(ctx, func(tx kv.Tx) error {
		old, found, err := kv.Load[localEvent](tx, keytype.AuditEvent.Bucket(), key)
		switch {
		case err != nil:
			return err
		case found && old != item:
			return errIDTaken
		case found:
			return nil
		}
		return kv.Save(tx, keytype.AuditEvent.Bucket(), key, item, e.At().Add(Retention))
	})
	if err != nil {
		return fmt.Errorf("append event: %w", err)
	}
	return nil
}

// Page implements Store.
func (l *Local) Page(ctx context.Context, tenant string, oldest, before ID, limit int) (events []Event, err error) {
	err = l.kv.View(ctx, func(tx kv.Tx) error {
		events, err = scan(tx, tenant, oldest, before, limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return events, nil
}

func scan(tx kv.Tx, tenant string, oldest, before ID, limit int) (events []Event, err error) {
	prefix, after := keytype.AuditEvent.Prefix(tenant), localKey(tenant, before)
	tx.Scan(keytype.AuditEvent.Bucket(), prefix, after, func(key string, value []byte) bool {
		if len(events) == limit {
			return false
		}
		var e Event
		if e, err = readLocal(key, value); err != nil || e.ID.Compare(oldest) < 0 {
			return false
		}
		events = append(events, e)
		return true
	})
	return events, err
}

func localKey(tenant string, id ID) string {
	return keytype.AuditEvent.Key(tenant, id.reversed().String())
}

func readLocal(key string, value []byte) (Event, error) {
	parts, ok := keytype.AuditEvent.Split(key)
	if !ok {
		return Event{}, errors.New("audit: a key is not an event's")
	}
	reversed, err := ParseID(parts[1])
	if err != nil {
		return Event{}, err
	}
	item, err := kv.Decode[localEvent](value)
	if err != nil {
		return Event{}, err
	}
	return Event{
		ID: reversed.reversed(), Tenant: parts[0],
		Actor: item.Actor, Action: item.Action, User: item.User, Subject: item.Subject, Reason: item.Reason,
		RequestID: item.RequestID, Outcome: item.Outcome, Repeats: item.Repeats,
	}, nil
}
