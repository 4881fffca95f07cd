package dynamosession

import (
	"context"
	"fmt"
	"maps"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/session"
)

// maxEnded is how many idle sessions one transaction ends, with room for what is created.
const maxEnded = dynamo.MaxChanges - 3

// Create implements session.Store.
func (s *Store) Create(ctx context.Context, op session.CreateOp) (session.Session, session.Outcome, error) {
	for range maxRounds {
		made, outcome, err := s.tryCreate(ctx, op)
		if err != nil {
			return session.Session{}, 0, fmt.Errorf("create session: %w", err)
		}
		if outcome != again {
			return made, outcome, nil
		}
	}
	return session.Session{}, 0, fmt.Errorf("create session: %w", errContended)
}

// again is the outcome of a try that others overtook.
const again session.Outcome = 0

func (s *Store) tryCreate(ctx context.Context, op session.CreateOp) (session.Session, session.Outcome, error) {
	old, err := s.loadUser(ctx, op.User)
	if err != nil {
		return session.Session{}, 0, err
	}
	u, r, outcome := session.Create(old, op)
	if outcome != session.Done {
		return session.Session{}, outcome, nil
	}
	var idle []found
	if op.MaxSessions > 0 {
		live := 0
		if live, idle, err = s.count(ctx, u, op); err != nil {
			return session.Session{}, 0, err
		}
		if live >= op.MaxSessions {
			return session.Session{}, session.RefusedLimit, nil
		}
		if len(idle) > maxEnded {
			return session.Session{}, again, s.end(ctx, op, old, idle[:maxEnded])
		}
	}
	k := session.Key{Tenant: op.User.Tenant, Tag: op.User.Tag, ID: op.ID}
	changes := []dynamo.Change{s.countLogin(op, old, u, len(idle) > 0), s.newRecord(k, r)}
	if op.Data != nil {
		changes = append(changes, s.setData(k, 0, session.Data{Value: op.Data, Version: 1}, r))
	}
	done, failed, err := s.transact(ctx, append(changes, s.endings(op, idle)...)...)
	switch {
	case err != nil:
		return session.Session{}, 0, err
	case done:
		return r.Session(u, k, session.DurableTracking(r.Idle)), session.Done, nil
	case failed[1]:
		return session.Session{}, 0, errIDTaken
	}
	return session.Session{}, again, nil
}

// countLogin has each login notice the others. The first makes the user's record. The
// session carries the numbers of that record as they are in the same transaction.
func (s *Store) countLogin(op session.CreateOp, old, u session.User, ends bool) dynamo.Change {
	c := s.raise(op.User.Tag, old)
	if old.Version == 0 {
		c.Set = "#tenant = :tenant, #user = :user, #sv = :sv, #pv = :pv, #disabled = :disabled, #ver = :one, #creates = :one"
		c.Condition = "attribute_not_exists(#ver)"
		maps.Copy(c.Values, dynamo.Item{
			":tenant": dynamo.S(u.Tenant), ":user": dynamo.S(u.User), ":sv": dynamo.N(u.SessionVersion), ":pv": dynamo.N(u.PermissionEpoch),
		})
		return c
	}
	c.Set = "#creates = #creates + :one"
	if ends {
		c.Set += ", #ver = #ver + :one"
	}
	if op.MaxSessions > 0 {
		c.Condition += " AND #creates = :creates"
		c.Values[":creates"] = dynamo.N(old.Creates)
	}
	return c
}

func (s *Store) newRecord(k session.Key, r session.Record) dynamo.Change {
	set, values := created(r)
	return dynamo.Change{Table: s.table, Key: recordKey(k), Format: format, Set: set, Condition: "attribute_not_exists(#th)", Values: values}
}

// end ends idle sessions alone, where they are too many for the login's own transaction.
func (s *Store) end(ctx context.Context, op session.CreateOp, u session.User, idle []found) error {
	_, _, err := s.transact(ctx, append(s.endings(op, idle), s.raise(op.User.Tag, u))...)
	return err
}

// endings end each session, if it is as it was read: a use that came to be known since keeps it.
func (s *Store) endings(op session.CreateOp, idle []found) (changes []dynamo.Change) {
	for _, f := range idle {
		changes = append(changes, dynamo.Change{
			Table: s.table, Key: recordKey(session.Key{Tag: op.User.Tag, ID: f.id}), Format: format,
			Set:       "#state = :revoked",
			Condition: "#state = :active AND #se = :se AND #seen = :seen",
			Values:    withAlive(dynamo.Item{":revoked": dynamo.S(session.StateRevoked)}, f.Record),
		})
	}
	return changes
}

// count counts the user's live sessions and names those that count as idle.
func (s *Store) count(ctx context.Context, u session.User, op session.CreateOp) (live int, idle []found, err error) {
	for f, err := range s.sessions(ctx, op.User.Tag, "", pageSize) {
		if err != nil {
			return 0, nil, err
		}
		t := session.DurableTracking(f.Idle)
		if _, is := session.EndIdle(u, f.Record, op.User.Tenant, op.At(), t); is {
			idle = append(idle, f)
		} else if session.Counts(u, f.Record, op, t) {
			live++
		}
	}
	return live, idle, nil
}
