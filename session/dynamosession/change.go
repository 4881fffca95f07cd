package dynamosession

import (
	"context"
	"fmt"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/session"
)

// Rotate implements session.Store.
func (s *Store) Rotate(ctx context.Context, op session.RotateOp) (session.Session, session.Propagation, session.Outcome, error) {
	for range maxRounds {
		u, old, err := s.Load(ctx, op.Key)
		if err != nil {
			return session.Session{}, session.Propagation{}, 0, fmt.Errorf("rotate session: %w", err)
		}
		t := session.DurableTracking(old.Idle)
		_, r, outcome := session.Rotate(u, old, op, t)
		if outcome != session.Done {
			return session.Session{}, session.Propagation{}, outcome, nil
		}
		done, _, err := s.transact(ctx, s.raise(op.Tag, u), s.replaceToken(op.Key, old, r))
		if err != nil {
			return session.Session{}, session.Propagation{}, 0, fmt.Errorf("rotate session: %w", err)
		}
		if done {
			return r.Session(u, op.Key, t), atOnce, session.Done, nil
		}
	}
	return session.Session{}, session.Propagation{}, 0, fmt.Errorf("rotate session: %w", errContended)
}

// raise counts a change that alters the answers of verify, while the user's numbers stay as read.
func (s *Store) raise(tag string, u session.User) dynamo.Change {
	return dynamo.Change{
		Table: s.table, Key: userKey(tag), Format: format,
		Set:       "#ver = #ver + :one",
		Condition: asRead,
		Values: dynamo.Item{
			":one": dynamo.N(1), ":sv": dynamo.N(u.SessionVersion), ":pv": dynamo.N(u.PermissionEpoch), ":disabled": dynamo.Bool(u.Disabled),
		},
	}
}

// asRead holds while nothing has happened to all sessions of the user.
const asRead = "#sv = :sv AND #pv = :pv AND #disabled = :disabled"

func (s *Store) replaceToken(k session.Key, old, r session.Record) dynamo.Change {
	return dynamo.Change{
		Table: s.table, Key: recordKey(k), Format: format,
		Set: "#th = :th, #pe = :pe, #seen = :seen, #aal = :aal, #amr = :amr, #auth_at = :auth_at, #prev_th = :prev_th, " +
			"#prev_aal = :prev_aal, #prev_amr = :prev_amr, #prev_auth_at = :prev_auth_at, #prev_pe = :prev_pe, #grace_until = :grace_until",
		Condition: "#th = :prev_th AND #state = :active AND #se = :se AND #seen = :old_seen",
		Values: dynamo.Item{
			":th": dynamo.B(r.TokenHash), ":pe": dynamo.N(r.PermissionEpoch), ":seen": dynamo.N(r.Seen),
			":aal": dynamo.N(r.AAL), ":amr": dynamo.S(methods(r.AMR)), ":auth_at": dynamo.N(r.AuthAt),
			":prev_th": dynamo.B(r.Previous.TokenHash), ":prev_aal": dynamo.N(r.Previous.AAL), ":prev_amr": dynamo.S(methods(r.Previous.AMR)),
			":prev_auth_at": dynamo.N(r.Previous.AuthAt), ":prev_pe": dynamo.N(r.Previous.PermissionEpoch), ":grace_until": dynamo.N(r.Previous.GraceUntil),
			":active": dynamo.S(session.StateActive), ":se": dynamo.N(old.SessionVersion), ":old_seen": dynamo.N(old.Seen),
		},
	}
}

// Revoke implements session.Store.
func (s *Store) Revoke(ctx context.Context, op session.RevokeOp) (session.Propagation, session.Outcome, error) {
	for range maxRounds {
		u, old, err := s.Load(ctx, op.Key)
		if err != nil {
			return session.Propagation{}, 0, fmt.Errorf("revoke session: %w", err)
		}
		_, r, outcome := session.Revoke(u, old, op)
		if r.State == old.State {
			return atOnce, outcome, nil
		}
		done, _, err := s.transact(ctx,
			dynamo.Change{
				Table: s.table, Key: userKey(op.Tag), Format: format,
				Set:       "#ver = #ver + :one",
				Condition: "attribute_exists(#ver)",
				Values:    dynamo.Item{":one": dynamo.N(1)},
			},
			dynamo.Change{
				Table: s.table, Key: recordKey(op.Key), Format: format,
				Set:       "#state = :revoked",
				Condition: "#state = :active AND #th = :th", // a rotation may have made the token nobody's
				Values:    dynamo.Item{":revoked": dynamo.S(session.StateRevoked), ":active": dynamo.S(session.StateActive), ":th": dynamo.B(old.TokenHash)},
			})
		if err != nil {
			return session.Propagation{}, 0, fmt.Errorf("revoke session: %w", err)
		}
		if done {
			return atOnce, session.Done, nil
		}
	}
	return session.Propagation{}, 0, fmt.Errorf("revoke session: %w", errContended)
}

// Change implements session.Store. Without a session to keep it is one write to one
// item, whatever the number of sessions.
func (s *Store) Change(ctx context.Context, op session.ChangeOp) (session.Changed, session.Outcome, error) {
	decide := s.changeUser
	if op.Keep != nil {
		decide = s.keep
	}
	e, outcome, err := decide(ctx, op)
	if err == nil && op.Kind == session.Erase {
		err = s.erase(ctx, op.User.Tag)
	}
	if err != nil {
		return session.Changed{}, 0, fmt.Errorf("change user: %w", err)
	}
	if outcome != session.Done {
		return session.Changed{}, outcome, nil
	}
	return session.Changed{Epochs: e, Propagation: atOnce}, session.Done, nil
}

func (s *Store) changeUser(ctx context.Context, op session.ChangeOp) (session.Epochs, session.Outcome, error) {
	id := newID()
	result, err := dynamo.Update(ctx, s.client, s.setUser(op, id))
	if err != nil {
		return session.Epochs{}, 0, err
	}
	u, err := readUser(result.Item)
	if err != nil {
		return session.Epochs{}, 0, result.Unreadable(err)
	}
	if result.Applied || dynamo.Read(result.Item, format).Str("write_id") == id {
		return u.Epochs(), session.Done, nil
	}
	if err := result.Sure(); err != nil {
		return session.Epochs{}, 0, err
	}
	return session.Epochs{}, 0, errTagTaken
}

// setUser says what Change says of a user's numbers. Twice is not the same as once, so
// it is not sent again where its answer was lost: the write id tells whether it was made.
func (s *Store) setUser(op session.ChangeOp, id string) dynamo.Change {
	values := dynamo.Item{
		":tenant": dynamo.S(op.User.Tenant), ":user": dynamo.S(op.User.User), ":id": dynamo.S(id), ":zero": dynamo.N(0), ":one": dynamo.N(1),
	}
	same := func(name string) string { return "#" + name + " = if_not_exists(#" + name + ", :one)" }
	end, remove := "", "" // of the record itself
	sv, pv, disabled := same("sv"), same("pv"), "#disabled = if_not_exists(#disabled, :disabled)"
	values[":disabled"] = dynamo.Bool(op.Kind == session.Disable || op.Kind == session.Erase)
	switch op.Kind {
	case session.LogoutAll:
		sv += " + :one"
	case session.BumpPermissions:
		pv += " + :one"
	case session.Disable:
		disabled = "#disabled = :disabled"
	case session.Enable:
		sv += " + :one"
		disabled = "#disabled = :disabled"
		remove = "#until, #ttl"
	case session.Erase:
		sv += " + :one"
		disabled = "#disabled = :disabled"
		end = ", #until = :until, #ttl = :ttl"
		until := op.Now.Add(session.MaxTTL).UnixMilli()
		values[":until"], values[":ttl"] = dynamo.N(until), dynamo.N(seconds(until))
	}
	return dynamo.Change{
		Table: s.table, Key: userKey(op.User.Tag), Format: format, Once: true,
		Set: "#tenant = :tenant, #user = :user, " + sv + ", " + pv + ", " + disabled +
			", #ver = if_not_exists(#ver, :one) + :one, #creates = if_not_exists(#creates, :zero), #write_id = :id" + end,
		Remove:    remove,
		Condition: "attribute_not_exists(#tenant) OR (#tenant = :tenant AND #user = :user)",
		Values:    values,
	}
}

// keep is the logout-all that leaves one session alive: one transaction of two items.
func (s *Store) keep(ctx context.Context, op session.ChangeOp) (session.Epochs, session.Outcome, error) {
	k := session.Key{Tenant: op.User.Tenant, Tag: op.User.Tag, ID: op.Keep.ID}
	for range maxRounds {
		u, old, err := s.Load(ctx, k)
		if err != nil {
			return session.Epochs{}, 0, err
		}
		if u.Version > 0 && (u.Tenant != op.User.Tenant || u.User != op.User.User) {
			return session.Epochs{}, 0, errTagTaken
		}
		next, _, outcome := session.Change(u, old, op, session.DurableTracking(old.Idle))
		if outcome != session.Done {
			return session.Epochs{}, outcome, nil
		}
		user := s.raise(op.User.Tag, u)
		user.Set += ", #sv = #sv + :one"
		done, _, err := s.transact(ctx, user, dynamo.Change{
			Table: s.table, Key: recordKey(k), Format: format,
			Set:       "#se = :new",
			Condition: "#th = :th AND " + alive,
			Values:    withAlive(dynamo.Item{":new": dynamo.N(next.SessionVersion), ":th": dynamo.B(old.TokenHash)}, old),
		})
		if err != nil {
			return session.Epochs{}, 0, err
		}
		if done {
			return next.Epochs(), session.Done, nil
		}
	}
	return session.Epochs{}, 0, errContended
}

// alive holds while the session has not ended since it was read; a later use only keeps it alive.
const alive = "#state = :active AND #se = :se AND #seen >= :seen"

func withAlive(values dynamo.Item, r session.Record) dynamo.Item {
	values[":active"], values[":se"], values[":seen"] = dynamo.S(session.StateActive), dynamo.N(r.SessionVersion), dynamo.N(r.Seen)
	return values
}

// WriteData implements session.Store.
func (s *Store) WriteData(ctx context.Context, op session.WriteDataOp) (int64, session.Outcome, error) {
	for range maxRounds {
		u, r, err := s.Load(ctx, op.Key)
		if err != nil {
			return 0, 0, fmt.Errorf("write session data: %w", err)
		}
		old, err := s.loadData(ctx, op.Key)
		if err != nil {
			return 0, 0, fmt.Errorf("write session data: %w", err)
		}
		d, outcome := session.WriteData(u, r, old, op, session.DurableTracking(r.Idle))
		if outcome != session.Done {
			return 0, outcome, nil
		}
		user := s.raise(op.Tag, u)
		user.Set, user.Condition = "", "#sv = :sv AND #disabled = :disabled" // a check alone
		delete(user.Values, ":one")
		delete(user.Values, ":pv")
		done, _, err := s.transact(ctx, user,
			dynamo.Change{Table: s.table, Key: recordKey(op.Key), Format: format, Condition: alive, Values: withAlive(dynamo.Item{}, r)},
			s.setData(op.Key, old.Version, d, r))
		if err != nil {
			return 0, 0, fmt.Errorf("write session data: %w", err)
		}
		if done {
			return d.Version, session.Done, nil
		}
	}
	return 0, 0, fmt.Errorf("write session data: %w", errContended)
}

// setData replaces the data with the version, 0 for none.
func (s *Store) setData(k session.Key, version int64, d session.Data, r session.Record) dynamo.Change {
	c := dynamo.Change{
		Table: s.table, Key: dataKey(k), Format: format,
		Set:       "#data = :data, #dver = :dver, #ttl = :ttl",
		Condition: "attribute_not_exists(#dver)",
		Values:    dynamo.Item{":data": dynamo.B(d.Value), ":dver": dynamo.N(d.Version), ":ttl": dynamo.N(seconds(r.Absolute))},
	}
	if version > 0 {
		c.Condition = "#dver = :old"
		c.Values[":old"] = dynamo.N(version)
	}
	return c
}
