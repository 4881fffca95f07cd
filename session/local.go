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

// atOnce is the propagation of a change where no cache lies between.
var atOnce = Propagation{Propagated: true}

// Local is the durable Store of one process: this package's transitions, each in one
// transaction. It knows of a session only the durable last use; see [DurableTracking].
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
		if u, r, outcome = Create(old, op); outcome != Done {
			return nil
		}
		if op.MaxSessions > 0 {
			if u, outcome, err = makeRoom(tx, u, op); err != nil || outcome != Done {
				return err
			}
		}
		if err := saveUser(tx, op.User.Tag, u); err != nil {
			return err
		}
		if op.Data != nil {
			if err := saveData(tx, key, Data{op.Data, 1}, r.Absolute); err != nil {
				return err
			}
		}
		s = r.Session(u, key, DurableTracking(r.Idle))
		return addRecord(tx, key, r)
	})
	if err != nil {
		return Session{}, 0, err
	}
	return s, outcome, nil
}

// makeRoom counts the live sessions and ends the idle ones, if the login is within its limit.
func makeRoom(tx kv.Tx, u User, op CreateOp) (User, Outcome, error) {
	live, idle := 0, map[string]Record{}
	err := scan(tx, op.User.Tag, "", func(id string, r Record) bool {
		t := DurableTracking(r.Idle)
		if ended, is := EndIdle(u, r, op.User.Tenant, op.At(), t); is {
			idle[id] = ended
		} else if Counts(u, r, op, t) {
			live++
		}
		return true
	})
	if err != nil || live >= op.MaxSessions {
		return u, RefusedLimit, err
	}
	for id, r := range idle {
		if err := saveRecord(tx, Key{op.User.Tenant, op.User.Tag, id}, r); err != nil {
			return u, 0, err
		}
	}
	if len(idle) > 0 {
		u.Version++
	}
	return u, Done, nil
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
	r, v = Verify(u, old, op, DurableTracking(old.Idle))
	return v, r, r.Seen != old.Seen, nil
}

// Rotate implements Store.
func (l *Local) Rotate(ctx context.Context, op RotateOp) (s Session, p Propagation, outcome Outcome, err error) {
	err = l.update(ctx, "rotate session", func(tx kv.Tx) error {
		u, r, err := loadBoth(tx, op.Key)
		if err != nil {
			return err
		}
		t := DurableTracking(r.Idle)
		if u, r, outcome = Rotate(u, r, op, t); outcome != Done {
			return nil
		}
		s = r.Session(u, op.Key, t)
		return saveBoth(tx, op.Key, u, r)
	})
	return s, atOnce, outcome, err
}

// Revoke implements Store.
func (l *Local) Revoke(ctx context.Context, op RevokeOp) (p Propagation, outcome Outcome, err error) {
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
	return atOnce, outcome, err
}

// Get implements Store.
func (l *Local) Get(ctx context.Context, op GetOp) (s Session, outcome Outcome, err error) {
	err = l.view(ctx, "get session", func(tx kv.Tx) error {
		u, r, err := loadBoth(tx, op.Key)
		if err != nil {
			return err
		}
		t := DurableTracking(r.Idle)
		if !Readable(u, r, op, t) {
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
	err = scan(tx, op.User.Tag, op.After, func(id string, r Record) bool {
		t := DurableTracking(r.Idle)
		if Judge(u, r, op.User.Tenant, op.Now, t.Slack) != "" {
			return true
		}
		if len(page.Sessions) == op.Limit {
			page.Next = last
			return false
		}
		last = id
		page.Sessions = append(page.Sessions, r.Session(u, Key{op.User.Tenant, op.User.Tag, id}, t))
		return true
	})
	return page, err
}

// Change implements Store.
func (l *Local) Change(ctx context.Context, op ChangeOp) (c Changed, outcome Outcome, err error) {
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
		u, kept, outcome = Change(u, kept, op, DurableTracking(kept.Idle))
		if outcome != Done {
			return nil
		}
		c = Changed{u.Epochs(), atOnce}
		if op.Kind == Erase {
			erase(tx, op.User.Tag)
		}
		if op.Keep == nil {
			return saveUser(tx, op.User.Tag, u)
		}
		return saveBoth(tx, Key{op.User.Tenant, op.User.Tag, op.Keep.ID}, u, kept)
	})
	return c, outcome, err
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

// ReadData implements Store.
func (l *Local) ReadData(ctx context.Context, op GetOp) (d Data, outcome Outcome, err error) {
	err = l.view(ctx, "read session data", func(tx kv.Tx) error {
		u, r, err := loadBoth(tx, op.Key)
		if err != nil {
			return err
		}
		if !Readable(u, r, op, DurableTracking(r.Idle)) {
			outcome = RefusedUnknown
			return nil
		}
		outcome = Done
		d, err = loadData(tx, op.Key)
		return err
	})
	return d, outcome, err
}

// WriteData implements Store.
func (l *Local) WriteData(ctx context.Context, op WriteDataOp) (version int64, outcome Outcome, err error) {
	err = l.update(ctx, "write session data", func(tx kv.Tx) error {
		u, r, err := loadBoth(tx, op.Key)
		if err != nil {
			return err
		}
		d, err := loadData(tx, op.Key)
		if err != nil {
			return err
		}
		d, outcome = WriteData(u, r, d, op, DurableTracking(r.Idle))
		if outcome != Done {
			return nil
		}
		version = d.Version
		return saveData(tx, op.Key, d, r.Absolute)
	})
	return version, outcome, err
}

// TenantEpoch implements Store.
func (l *Local) TenantEpoch(ctx context.Context, tenant string) (epoch int64, err error) {
	err = l.view(ctx, "read tenant epoch", func(tx kv.Tx) error {
		epoch, _, err = kv.Load[int64](tx, keytype.TenantEpoch.Bucket(), keytype.TenantEpoch.Key(tenant))
		return err
	})
	return epoch, err
}

// RaiseTenantEpoch implements Store.
func (l *Local) RaiseTenantEpoch(ctx context.Context, tenant string) (epoch int64, err error) {
	err = l.update(ctx, "raise tenant epoch", func(tx kv.Tx) error {
		bucket, key := keytype.TenantEpoch.Bucket(), keytype.TenantEpoch.Key(tenant)
		if epoch, _, err = kv.Load[int64](tx, bucket, key); err != nil {
			return err
		}
		epoch++
		return kv.Save(tx, bucket, key, epoch, time.Time{})
	})
	return epoch, err
}

// Load implements Durable.
func (l *Local) Load(ctx context.Context, key Key) (u User, r Record, err error) {
	err = l.view(ctx, "load session", func(tx kv.Tx) error {
		u, r, err = loadBoth(tx, key)
		return err
	})
	return u, r, err
}

// LoadUser implements Durable.
func (l *Local) LoadUser(ctx context.Context, tag string) (u User, err error) {
	err = l.view(ctx, "load user", func(tx kv.Tx) error {
		u, _, err = kv.Load[User](tx, keytype.UserEpoch.Bucket(), keytype.UserEpoch.Key(tag))
		return err
	})
	return u, err
}

// Touch implements Durable.
func (l *Local) Touch(ctx context.Context, key Key, seen int64) error {
	return l.update(ctx, "touch session", func(tx kv.Tx) error {
		r, err := loadRecord(tx, key.Tag, key.ID)
		if err != nil || r.State != StateActive || r.Seen >= seen {
			return err
		}
		r.Seen = seen
		return saveRecord(tx, key, r)
	})
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

// scan reads the sessions of a user in order of their ids, those after the id.
func scan(tx kv.Tx, tag, after string, fn func(id string, r Record) bool) (err error) {
	prefix, from := keytype.Session.Prefix(tag), keytype.Session.Key(tag, after)
	tx.Scan(keytype.Session.Bucket(), prefix, from, func(key string, value []byte) bool {
		var r Record
		if r, err = kv.Decode[Record](value); err != nil {
			return false
		}
		parts, ok := keytype.Session.Split(key)
		if !ok {
			err = errors.New("a key is not a session's")
			return false
		}
		return fn(parts[1], r)
	})
	return err
}

// loadData returns version 0 where nothing was written.
func loadData(tx kv.Tx, k Key) (Data, error) {
	d, _, err := kv.Load[storedData](tx, keytype.SessionData.Bucket(), keytype.SessionData.Key(k.Tag, k.ID))
	return Data(d), err
}

// saveData keeps the data as long as their session.
func saveData(tx kv.Tx, k Key, d Data, absolute int64) error {
	return kv.Save(tx, keytype.SessionData.Bucket(), keytype.SessionData.Key(k.Tag, k.ID), storedData(d), instant(absolute))
}

// storedData keeps the value as bytes: they come back as they were written.
type storedData struct {
	Value   []byte `json:"data"`
	Version int64  `json:"dver"`
}

func loadBoth(tx kv.Tx, k Key) (User, Record, error) {
	u, _, err := kv.Load[User](tx, keytype.UserEpoch.Bucket(), keytype.UserEpoch.Key(k.Tag))
	if err != nil {
		return User{}, Record{}, err
	}
	r, err := loadRecord(tx, k.Tag, k.ID)
	return u, r, err
}

// saveUser keeps the record for ever, but that of an erased user.
func saveUser(tx kv.Tx, tag string, u User) error {
	var until time.Time
	if u.Until > 0 {
		until = instant(u.Until)
	}
	return kv.Save(tx, keytype.UserEpoch.Bucket(), keytype.UserEpoch.Key(tag), u, until)
}

// erase removes the user's sessions and their data.
func erase(tx kv.Tx, tag string) {
	for _, kind := range []*keytype.Type{keytype.Session, keytype.SessionData} {
		tx.Scan(kind.Bucket(), kind.Prefix(tag), "", func(key string, _ []byte) bool {
			tx.Delete(kind.Bucket(), key)
			return true
		})
	}
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
