package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// errTagTaken is met once in 2^64 users, or where two route keys wrote one store.
var errTagTaken = fmt.Errorf("session: the user's tag belongs to another user: %w", keytype.ErrUnavailable)

// errIDTaken is met when the random source repeats itself.
var errIDTaken = fmt.Errorf("session: the new session's id is in use: %w", keytype.ErrUnavailable)

// Local is the Store in one process: this package's transitions, each in one
// transaction. It knows of a session only the durable last use; see [Durable].
type Local struct{ kv kv.Store }

// NewLocal makes a Store over the items of one memory or file store.
func NewLocal(store kv.Store) *Local { return &Local{kv: store} }

// Create implements Store.
func (l *Local) Create(ctx context.Context, op CreateOp) (s Session, outcome Outcome, err error) {
	key := Key{op.User.Tenant, op.User.Tag, op.ID}
	err = l.update(ctx, "create session", func(tx kv.Tx) error {
		old, err := loadUser(tx, op.User)
		if err != nil {
			return err
		}
		var u User
		var r Record
		u, r, outcome = Create(old, op)
		if outcome != Done {
			return nil
		}
		if old.Version == 0 {
			if err := saveUser(tx, op.User.Tag, u); err != nil {
				return err
			}
		}
		s = r.Session(u, key, Durable(r.Idle))
		return addRecord(tx, key, r)
	})
	if err != nil {
		return Session{}, 0, err
	}
	return s, outcome, nil
}

// Verify implements Store. A verify without a use to record writes nothing, so it
// waits for no fsync.
func (l *Local) Verify(ctx context.Context, op VerifyOp) (Verdict, error) {
	v, due, err := l.read(ctx, op)
	if err != nil || !due {
		return v, err
	}
	if v, err := l.touch(ctx, op); err == nil {
		return v, nil
	}
	op.NoTouch = true // a use that cannot be recorded is skipped
	v, _, err = l.read(ctx, op)
	return v, err
}

// read decides and reports whether there is a use to record.
func (l *Local) read(ctx context.Context, op VerifyOp) (v Verdict, due bool, err error) {
	err = l.view(ctx, "verify session", func(tx kv.Tx) error {
		v, _, due, err = decide(tx, op)
		return err
	})
	return v, due, err
}

// touch decides anew, since what was read may have ended, and records the use.
func (l *Local) touch(ctx context.Context, op VerifyOp) (v Verdict, err error) {
	err = l.update(ctx, "touch session", func(tx kv.Tx) error {
		verdict, r, due, err := decide(tx, op)
		v = verdict
		if err != nil || !due {
			return err
		}
		return saveRecord(tx, op.Key, r)
	})
	return v, err
}

func decide(tx kv.Tx, op VerifyOp) (v Verdict, r Record, due bool, err error) {
	u, old, err := loadBoth(tx, op.Key)
	if err != nil {
		return Verdict{}, Record{}, false, err
	}
	r, v = Verify(u, old, op, Durable(old.Idle))
	return v, r, r.Seen != old.Seen, nil
}

// Revoke implements Store.
func (l *Local) Revoke(ctx context.Context, op RevokeOp) (outcome Outcome, err error) {
	err = l.update(ctx, "revoke session", func(tx kv.Tx) error {
		old, r, err := loadBoth(tx, op.Key)
		if err != nil {
			return err
		}
		var u User
		u, r, outcome = Revoke(old, r, op)
		if u == old {
			return nil
		}
		return saveBoth(tx, op.Key, u, r)
	})
	return outcome, err
}

// Get implements Store.
func (l *Local) Get(ctx context.Context, op GetOp) (s Session, outcome Outcome, err error) {
	err = l.view(ctx, "get session", func(tx kv.Tx) error {
		u, r, err := loadBoth(tx, op.Key)
		if err != nil {
			return err
		}
		t := Durable(r.Idle)
		if Judge(u, r, op.Tenant, op.Now, t.Slack) != "" {
			outcome = RefusedUnknown
			return nil
		}
		s, outcome = r.Session(u, op.Key, t), Done
		return nil
	})
	return s, outcome, err
}

// List implements Store.
func (l *Local) List(ctx context.Context, op ListOp) (page Page, err error) {
	err = l.view(ctx, "list sessions", func(tx kv.Tx) error {
		u, err := loadUser(tx, op.User)
		if err != nil {
			return err
		}
		page, err = list(tx, u, op)
		return err
	})
	return page, err
}

func list(tx kv.Tx, u User, op ListOp) (page Page, err error) {
	var last string
	prefix, after := keytype.Session.Prefix(op.User.Tag), keytype.Session.Key(op.User.Tag, op.After)
	tx.Scan(keytype.Session.Bucket(), prefix, after, func(key string, value []byte) bool {
		var r Record
		if r, err = kv.Decode[Record](value); err != nil {
			return false
		}
		t := Durable(r.Idle)
		if Judge(u, r, op.User.Tenant, op.Now, t.Slack) != "" {
			return true
		}
		if len(page.Sessions) == op.Limit {
			page.Next = last
			return false
		}
		parts, ok := keytype.Session.Split(key)
		if !ok {
			err = errors.New("a key is not a session's")
			return false
		}
		last = parts[1]
		page.Sessions = append(page.Sessions, r.Session(u, Key{op.User.Tenant, op.User.Tag, last}, t))
		return true
	})
	return page, err
}

// Change implements Store.
func (l *Local) Change(ctx context.Context, op ChangeOp) (e Epochs, outcome Outcome, err error) {
	err = l.update(ctx, "change user", func(tx kv.Tx) error {
		u, err := loadUser(tx, op.User)
		if err != nil {
			return err
		}
		var kept Record
		if op.Keep != nil {
			if kept, err = loadRecord(tx, op.User.Tag, op.Keep.ID); err != nil {
				return err
			}
		}
		u, kept, outcome = Change(u, kept, op, Durable(kept.Idle))
		if outcome != Done {
			return nil
		}
		e = u.Epochs()
		if op.Keep == nil {
			return saveUser(tx, op.User.Tag, u)
		}
		return saveBoth(tx, Key{op.User.Tenant, op.User.Tag, op.Keep.ID}, u, kept)
	})
	return e, outcome, err
}

// Epochs implements Store.
func (l *Local) Epochs(ctx context.Context, user UserKey) (e Epochs, err error) {
	err = l.view(ctx, "read epochs", func(tx kv.Tx) error {
		u, err := loadUser(tx, user)
		e = u.orNew(user).Epochs()
		return err
	})
	return e, err
}

func (l *Local) update(ctx context.Context, what string, fn func(kv.Tx) error) error {
	return fault(what, l.kv.Update(ctx, fn))
}

func (l *Local) view(ctx context.Context, what string, fn func(kv.Tx) error) error {
	return fault(what, l.kv.View(ctx, fn))
}

func fault(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// loadUser returns the zero User where there is no record.
func loadUser(tx kv.Tx, k UserKey) (User, error) {
	u, found, err := kv.Load[User](tx, keytype.UserEpoch.Bucket(), keytype.UserEpoch.Key(k.Tag))
	if err == nil && found && (u.Tenant != k.Tenant || u.User != k.User) {
		return User{}, errTagTaken
	}
	return u, err
}

// loadRecord returns the zero Record where there is none.
func loadRecord(tx kv.Tx, tag, id string) (Record, error) {
	r, _, err := kv.Load[Record](tx, keytype.Session.Bucket(), keytype.Session.Key(tag, id))
	return r, err
}

func loadBoth(tx kv.Tx, k Key) (User, Record, error) {
	u, _, err := kv.Load[User](tx, keytype.UserEpoch.Bucket(), keytype.UserEpoch.Key(k.Tag))
	if err != nil {
		return User{}, Record{}, err
	}
	r, err := loadRecord(tx, k.Tag, k.ID)
	return u, r, err
}

func saveUser(tx kv.Tx, tag string, u User) error {
	return kv.Save(tx, keytype.UserEpoch.Bucket(), keytype.UserEpoch.Key(tag), u, time.Time{})
}

func addRecord(tx kv.Tx, k Key, r Record) error {
	if tx.Get(keytype.Session.Bucket(), keytype.Session.Key(k.Tag, k.ID)) != nil {
		return errIDTaken
	}
	return saveRecord(tx, k, r)
}

// saveRecord keeps a session, revoked or not, until its absolute expiry.
func saveRecord(tx kv.Tx, k Key, r Record) error {
	return kv.Save(tx, keytype.Session.Bucket(), keytype.Session.Key(k.Tag, k.ID), r, instant(r.Absolute))
}

func saveBoth(tx kv.Tx, k Key, u User, r Record) error {
	if err := saveUser(tx, k.Tag, u); err != nil {
		return err
	}
	return saveRecord(tx, k, r)
}
